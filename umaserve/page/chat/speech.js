// The speech of answers: whether they are spoken as they are written, and which one is. What speaks is loaded with its
// first use.

import { fill, icon, iconButton, saveFile } from "../dom.js";
import { seconds } from "../words.js";

const KEY = "umaserve.speech";
/** Phases in which nothing new is to be read aloud: calls have no words, and the voice mode has a voice. */
const UNREAD = ["calling", "talking"];
const NO_VOICE = "This server has no voice. Whoever runs it can install one: pip install 'umaserve[speech]'";

/** `state.spoken` is the answer that is read aloud, `sounds` whether it is to be heard yet, `voiced` if any can be. */
export function chatSpeech(app, store, actions) {
  const { state } = store;
  const [sound, silent] = [icon("sound"), icon("silent")];
  const node = iconButton("silent", "", () => (state.voiced ? turn(!on) : actions.tell(NO_VOICE)));
  let on = app.storage.getItem(KEY) === "on";
  let reading = null;
  let player = null;
  let followed = state.run;
  Object.assign(state, { spoken: null, sounds: false, voiced: false });

  /** Reads an answer aloud from character `from` on, also while it grows. Resolves at the end. */
  async function read(answer, from = 0) {
    stop();
    const { signal } = (reading = new AbortController());
    const growing = () => state.run?.answer === answer;
    store.update(() => (state.spoken = answer));
    try {
      const { readAloud } = await import("../voice/speech.js");
      if (signal.aborted) return;
      const source = () => ({ text: answer.text.slice(from), isOver: !growing() });
      const sounds = () => state.sounds || store.update(() => (state.sounds = true));
      const spoken = readAloud(app.api, source, { sounds, waits }, signal);
      ({ player } = spoken);
      player.hold(isPaused());
      await spoken.end;
    } catch (error) {
      if (!signal.aborted) actions.tell(`This can't be read aloud: ${error.message}`);
    }
    if (!signal.aborted) stop();
  }

  /** Whether the answer that is spoken is paused, also while its connection is lost. */
  function isPaused() {
    const { run, spoken } = state;
    return run !== null && run.answer === spoken && (run.phase === "lost" ? run.before : run.phase) === "paused";
  }

  function waits(wait) {
    actions.tell(`The box is busy, or your key's limit is reached. The speech goes on in ${seconds(1000 * wait)}.`);
  }

  function stop() {
    reading?.abort();
    player = null;
    store.update(() => Object.assign(state, { spoken: null, sounds: false }));
  }

  async function save({ text }) {
    actions.tell("The answer is being spoken into a file…");
    try {
      const { soundFile } = await import("../voice/speech.js");
      saveFile(await soundFile(app.api, text, waits), "answer.wav");
      actions.tell("");
    } catch (error) {
      actions.tell(`This can't be spoken: ${error.message}`);
    }
  }

  /** Of the menu of an answer. */
  function items(answer) {
    if (!state.voiced) return [];
    const aloud = { name: "sound", label: "Read aloud", act: () => read(answer), disabled: state.spoken === answer };
    return [aloud, { name: "save", label: "Save the speech", act: () => save(answer) }];
  }

  /** Whether answers are spoken as they are written, which this browser keeps. */
  function turn(wanted) {
    on = wanted;
    app.storage.setItem(KEY, on ? "on" : "off");
    if (!on) stop();
    else if (state.run) read(state.run.answer, state.run.answer.text.length);
    store.update(() => {});
  }

  app.store.subscribe(({ voices }) => store.update(() => (state.voiced = voices?.length > 0)));
  store.subscribe(() => {
    const { run, voiced } = state;
    const label = voiced ? "Speak answers" : `Speak answers: ${NO_VOICE}`;
    node.ariaPressed = String(on && voiced);
    node.ariaDisabled = String(!voiced);
    node.ariaLabel = node.title = label;
    fill(node, on && voiced ? sound : silent);
    if (run !== followed) {
      if (run && !UNREAD.includes(run.phase) && on && voiced) read(run.answer, run.from);
      else if (followed?.answer === state.spoken && followed?.answer.end === "cancelled") stop();
      followed = run;
    }
    player?.hold(isPaused());
  });
  return { node, items, stop };
}
