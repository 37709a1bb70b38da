// An answer read aloud by the daemon's voice, part by part as the answer grows: played as it comes, or kept as a file.

import { Player } from "./player.js";
import { nextPart } from "./spoken_text.js";
import { wav } from "./wav.js";

/** The rate of the daemon's speech, in samples a second. */
const RATE = 24_000;
/** So long before the end of what is heard the next part is asked for: with all that has been written by then, since
 * each part is one request, and keys have so many a minute. */
const AHEAD_S = 8;

/**
 * Plays an answer, until `signal` says so: returns the player, and the promise of its end. `source()` has the answer's
 * {text, isOver}, as far as it has come; `sounds` is called when there is something to be heard, `waits` with the seconds
 * for which the server lets it wait. The promise may throw `ApiError`.
 */
export function readAloud(api, source, { sounds, waits }, signal) {
  const player = new Player(RATE);
  signal.addEventListener("abort", () => player.close());
  const isAhead = () => player.left > AHEAD_S;

  async function play() {
    try {
      for await (const samples of spoken({ api, source, isAhead, waits, signal })) {
        player.play(samples);
        sounds();
      }
    } finally {
      // What is there is heard to its end, also where the rest can't be had.
      while (player.left > 0 && !signal.aborted) await pause();
      player.close();
    }
  }
  return { player, end: play() };
}

/** The whole speech of a text, as a WAV file; `waits` as above. Throws `ApiError`. */
export async function soundFile(api, text, waits) {
  const parts = [];
  const { signal } = new AbortController();
  const whole = { api, source: () => ({ text, isOver: true }), isAhead: () => false, waits, signal };
  for await (const samples of spoken(whole)) parts.push(samples);
  return wav(parts, RATE);
}

async function* spoken({ api, source, isAhead, waits, signal }) {
  for (let at = 0; !signal.aborted; ) {
    if (isAhead()) {
      await pause();
      continue;
    }
    const { text, isOver } = source();
    const { length, words } = nextPart(text.slice(at), isOver);
    at += length;
    if (words) yield* samplesOf(await speech(api, words, waits, signal));
    else if (isOver && at >= text.length) return;
    else if (length === 0) await pause();
  }
}

/** The response that speaks a text, however often the server asks to come again later. */
async function speech(api, input, waits, signal) {
  const body = JSON.stringify({ input, response_format: "pcm" });
  const headers = { "Content-Type": "application/json" };
  for (;;) {
    try {
      return await api.fetch("/v1/audio/speech", { method: "POST", headers, body, signal });
    } catch (error) {
      if (!error.waitS) throw error;
      waits(error.waitS);
      await pause(1000 * error.waitS);
    }
  }
}

/** The samples of a response, from -1 to 1, as they come. */
async function* samplesOf({ body }) {
  const reader = body.getReader();
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

function pause(ms = 50) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
