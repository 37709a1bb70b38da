// Plays samples as they come: each piece begins where the one before it ends, to the sample.

/** So much later than now a sound begins, so that its beginning is not lost. */
const LEAD_S = 0.05;

export class Player {
  #context;
  #rate;
  #held = false;
  /** Where the sound ends that is there so far, in samples of the context's time. */
  #end = 0;
  #total = 0;

  constructor(rate) {
    // Of the same rate, so that the pieces are not resampled each by itself, which is heard at their seams.
    this.#context = new AudioContext({ sampleRate: rate });
    this.#rate = rate;
  }

  play(samples) {
    const context = this.#context;
    if (context.state === "closed") return;
    const buffer = context.createBuffer(1, samples.length, this.#rate);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(context.destination);
    const start = Math.max(this.#end, Math.ceil((context.currentTime + LEAD_S) * this.#rate));
    source.start(start / this.#rate);
    this.#end = start + samples.length;
    this.#total += samples.length;
  }

  /** Holds the sound where it is, or lets it go on. */
  hold(wanted) {
    if (wanted === this.#held) return;
    this.#held = wanted;
    const context = this.#context;
    // Who closes it before that is done has no sound to hold.
    (wanted ? context.suspend() : context.resume()).catch(() => {});
  }

  /** How many seconds are still to be heard. */
  get left() {
    return Math.max(0, this.#end / this.#rate - this.#context.currentTime);
  }

  /** How many seconds have been heard. */
  get heard() {
    return Math.max(0, this.#total / this.#rate - this.left);
  }

  /** Ends it at once. */
  close() {
    if (this.#context.state !== "closed") this.#context.close();
  }
}
