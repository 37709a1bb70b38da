// The voice mode: a microphone that stays open, and what it hears and says. One just talks.

import { h, icon, iconButton, write } from "../dom.js";
import { listen, loudness } from "../voice/microphone.js";
import { RATE } from "../voice/session.js";
import { talk } from "./voice_talk.js";

const NO_MICROPHONE = {
  NotAllowedError: "The browser doesn't give this page the microphone. Allow it beside the address, and press the button.",
  NotFoundError: "There is no microphone. Connect one, and press the button.",
};
const NOT_SECURE = "The browser gives the microphone only to pages over https, or of this machine: http://127.0.0.1.";
const WORDS = {
  opening: "Connecting…",
  idle: "Talk: it listens.",
  muted: "The microphone is off.",
  listening: "Listening…",
  speaking: "Speaking… Talk to interrupt.",
  elsewhere: "It listens again after this answer.",
};
const WANTED = { audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true } };

export function voiceMode(place, { app, store, actions, speech, close }) {
  const { state } = store;
  const words = h("p", { role: "status" });
  const level = h("meter", { min: 0, max: 1, "aria-label": "Level" });
  const button = h("button.primary", { onclick: press }, icon("microphone"));
  const leaving = new AbortController();
  const left = leaving.signal;
  let [stream, talking, endListening] = [null, null, null];
  let [problem, muted] = ["", false];

  async function open() {
    problem = "";
    try {
      if (!navigator.mediaDevices) throw new Error(NOT_SECURE);
      stream ??= await navigator.mediaDevices.getUserMedia(WANTED);
      if (left.aborted) return hangUp();
      endListening ??= await listen(stream, RATE, hear);
      if (left.aborted) return hangUp();
      if (talking) talking.open();
      else talking = talk({ app, store, actions, speech, changed: show, failed });
    } catch (error) {
      problem = NO_MICROPHONE[error.name] ?? error.message;
    }
    return show();
  }

  function hangUp() {
    for (const track of stream?.getTracks() ?? []) track.stop();
    endListening?.();
  }

  function failed(reason) {
    problem = reason;
    show();
  }

  function hear(samples) {
    level.value = muted ? 0 : loudness(samples);
    // Silence ends a turn, so it goes on coming.
    talking?.append(muted ? samples.fill(0) : samples);
  }

  function press() {
    if (problem) return open();
    muted = !muted;
    return show();
  }

  function phase() {
    const now = talking?.phase ?? "opening";
    if (problem && ["opening", "idle"].includes(now)) return ["failed", problem];
    if (now === "thinking") return [now, state.voiced ? "Thinking…" : "Answering in writing: this server has no voice."];
    return muted && now === "idle" ? ["muted", WORDS.muted] : [now, WORDS[now]];
  }

  function show() {
    if (left.aborted) return;
    const [name, text] = phase();
    place.dataset.phase = name;
    if (problem && !["failed", "opening"].includes(name)) problem = "";
    write(words, text);
    button.ariaPressed = String(!muted);
    button.ariaLabel = button.title = name === "failed" ? "Try again" : "Microphone";
  }

  place.replaceChildren(words, h("div.level", {}, level), button, iconButton("close", "Leave the voice mode", close));
  place.hidden = false;
  button.focus();
  open();
  show();

  return {
    end() {
      leaving.abort();
      talking?.close();
      hangUp();
      place.hidden = true;
    },
  };
}
