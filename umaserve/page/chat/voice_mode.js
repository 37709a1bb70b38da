// Talking: hold the button, talk, let go. What was said goes to the model as a sound if that hears, else as the text that
// another one has heard in it. The answer is spoken; whoever talks interrupts it.

import { fill, h, icon, iconButton } from "../dom.js";
import { microphone } from "./attach_capture.js";
import { prepared, problemOf, takes } from "./attach_media.js";

/** Who presses for a shorter time has tapped: to begin, and again to end. */
const TAP_MS = 300;
const IDLE = "Hold the button and talk, or tap it to begin and to end.";
const NO_MICROPHONE = {
  NotAllowedError: "The browser doesn't give this page the microphone. Allow it beside the address, and press again.",
  NotFoundError: "There is no microphone. Connect one, and press again.",
};
const NOT_SECURE = "The browser gives the microphone only to pages over https, or of this machine: http://127.0.0.1.";

export function voiceMode(place, { app, store, actions, speech, close }) {
  const { state } = store;
  const words = h("p", { role: "status" });
  const level = h("div.level");
  const button = h("button.primary", { "aria-label": "Hold to talk" }, icon("microphone"));
  let opening = null;
  let stream = null;
  const leaving = new AbortController();
  const left = leaving.signal;
  let recording = null;
  let pressedAt = 0;
  let held = false;
  let problem = "";
  let understanding = false;
  /** Counts what was said: who talks again takes back what is still being understood. */
  let said = 0;

  async function open() {
    try {
      if (!navigator.mediaDevices) throw new Error(NOT_SECURE);
      opening ??= navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: true, noiseSuppression: true } });
      stream = await opening;
    } catch (error) {
      opening = null;
      problem = NO_MICROPHONE[error.name] ?? error.message;
    }
    if (left.aborted) hangUp();
    else show();
  }

  function hangUp() {
    for (const track of stream?.getTracks() ?? []) track.stop();
  }

  async function press() {
    if (recording) return send();
    said += 1;
    [held, problem, understanding, pressedAt] = [true, "", false, performance.now()];
    speech.stop();
    actions.stop();
    if (!stream) await open();
    // It may have been let go while the browser asked for the microphone.
    if (stream && held && !left.aborted) recording = microphone(stream);
    show();
  }

  function release() {
    if (recording && held && performance.now() - pressedAt > TAP_MS) send();
    held = false;
  }

  function discard() {
    recording?.end();
    recording = null;
    show();
  }

  async function send() {
    const mine = said;
    const { finish, end } = recording;
    recording = null;
    held = false;
    understanding = true;
    show();
    const file = await finish();
    end();
    try {
      await say(file, () => said === mine);
    } catch (error) {
      if (said === mine) problem = error.message;
    }
    if (said === mine) understanding = false;
    show();
  }

  async function say(file, isLast) {
    const { models, limits } = app.store.state;
    const model = models.find(({ id }) => id === state.conversation.model) ?? models[0];
    let [text, media] = ["", []];
    if (takes(model, "audio")) {
      media = [await prepared(file)];
      const refused = problemOf(media[0], model, state, limits);
      if (refused) throw new Error(refused);
    } else {
      text = await heard(file, models.find((one) => takes(one, "audio")));
      if (!text) throw new Error("No word was heard. Is it the right microphone? Say it again.");
    }
    while (state.run && isLast()) await new Promise((resolve) => setTimeout(resolve, 50));
    if (isLast()) actions.say(text, media);
  }

  async function heard(file, { id }) {
    const body = new FormData();
    body.append("file", file);
    body.append("model", id);
    const response = await app.api.fetch("/v1/audio/transcriptions", { method: "POST", body });
    return (await response.json()).text.trim();
  }

  function phase() {
    if (recording) return ["listening", held ? "Listening… Let go to send." : "Listening… Tap to send."];
    if (understanding) return ["thinking", "Understanding…"];
    if (problem) return ["failed", problem];
    if (state.run?.phase === "paused") return ["paused", "Paused."];
    if (state.sounds) return ["speaking", "Speaking… Hold the button to interrupt."];
    if (state.run || state.spoken) return ["thinking", state.voiced ? "Thinking…" : "Answering in writing: this server has no voice."];
    return ["idle", IDLE];
  }

  function show() {
    if (left.aborted) return;
    const [name, text] = phase();
    place.dataset.phase = name;
    if (words.textContent !== text) words.textContent = text;
    fill(level, recording?.node);
  }

  const keys = (act) => (event) => {
    if (![" ", "Enter"].includes(event.key)) return;
    event.preventDefault();
    if (!event.repeat) act();
  };
  const on = {
    pointerdown: (event) => {
      if (event.button !== 0) return;
      button.setPointerCapture(event.pointerId);
      press();
    },
    pointerup: release,
    pointercancel: release,
    keydown: keys(press),
    keyup: keys(release),
    blur: release,
    // By a screen reader, without a press.
    click: ({ detail }) => detail === 0 && press().then(() => (held = false)),
    contextmenu: (event) => event.preventDefault(),
  };
  for (const [name, act] of Object.entries(on)) button.addEventListener(name, act);
  place.onkeydown = (event) => {
    if (event.key !== "Escape" || !recording) return;
    event.preventDefault();
    discard();
  };
  place.replaceChildren(words, level, button, iconButton("close", "Leave the voice mode", close));
  place.hidden = false;
  button.focus();
  const wasOn = speech.isOn();
  speech.turn(true);
  open();
  store.subscribe(show, left);

  return {
    end() {
      said += 1;
      discard();
      leaving.abort();
      hangUp();
      speech.turn(wasOn);
      place.hidden = true;
    },
  };
}
