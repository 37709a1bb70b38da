// An answer read aloud by the daemon's voice, part by part as the answer grows: played as it comes, or kept as a file.

import { Player } from "./player.js";
import { nextPart } from "./spoken_text.js";
import { wav } from "./wav.js";

/** The rate of the daemon's speech, in samples a second. */
const RATE = 24_000;
/** So much is scheduled at most: of what nobody hears in the end, no more is computed. */
const AHEAD_S = 20;

/**
 * Plays an answer to its end, or until `signal` says so. `source()` has its {text, isOver}, as far as it has come;
 * `sounds` is called when there is something to be heard. Throws `ApiError`.
 */
export async function readAloud(api, source, sounds, signal) {
  const player = new Player(RATE);
  signal.addEventListener("abort", () => player.close());
  try {
    for await (const samples of spoken(api, source, signal)) {
      player.play(samples);
      sounds();
      while (player.left > AHEAD_S && !signal.aborted) await pause();
    }
    while (player.left > 0 && !signal.aborted) await pause();
  } finally {
    player.close();
  }
}

/** The whole speech of a text, as a WAV file. Throws `ApiError`. */
export async function soundFile(api, text) {
  const parts = [];
  const source = () => ({ text, isOver: true });
  for await (const samples of spoken(api, source, new AbortController().signal)) parts.push(samples);
  return wav(parts, RATE);
}

async function* spoken(api, source, signal) {
  for (let at = 0; !signal.aborted; ) {
    const { text, isOver } = source();
    const { length, words } = nextPart(text.slice(at), isOver);
    at += length;
    if (words) yield* samplesOf(api, words, signal);
    else if (isOver && at >= text.length) return;
    else if (length === 0) await pause();
  }
}

/** Has a text spoken: its samples, from -1 to 1, as they come. */
async function* samplesOf(api, input, signal) {
  const body = JSON.stringify({ input, response_format: "pcm" });
  const headers = { "Content-Type": "application/json" };
  const response = await api.fetch("/v1/audio/speech", { method: "POST", headers, body, signal });
  const reader = response.body.getReader();
  let half = new Uint8Array();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const bytes = new Uint8Array(half.length + value.length);
    bytes.set(half);
    bytes.set(value, half.length);
    const whole = bytes.length - (bytes.length % 2);
    half = bytes.slice(whole);
    if (whole > 0) yield Float32Array.from(new Int16Array(bytes.buffer, 0, whole / 2), (n) => n / 32768);
  }
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve, 50));
}
