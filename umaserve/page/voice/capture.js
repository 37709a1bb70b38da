// Runs beside the page, for microphone.js: passes on what the microphone hears, in pieces.

const PIECE = 1024;

registerProcessor("capture", class extends AudioWorkletProcessor {
  #piece = new Float32Array(PIECE);
  #length = 0;

  process([[samples]]) {
    for (const sample of samples ?? []) {
      this.#piece[this.#length] = sample;
      this.#length += 1;
      if (this.#length < PIECE) continue;
      this.port.postMessage(this.#piece.slice());
      this.#length = 0;
    }
    return true;
  }
});
