// The sound of a session, of which a part is taken out once it turns out to be what somebody said.

const KEPT_MS = 2000;

export function heardSound(rate) {
  /** [{at, samples}], `at` counting the session's samples. */
  let pieces = [];
  let end = 0;
  let from = null;

  return {
    push(samples) {
      pieces.push({ at: end, samples });
      end += samples.length;
      const needed = from ?? end - (KEPT_MS * rate) / 1000;
      while (pieces.length > 0 && pieces[0].at + pieces[0].samples.length <= needed) pieces.shift();
    },
    /** From here on, in the session's milliseconds, somebody talks. */
    begin: (ms) => (from = (ms * rate) / 1000),
    /** The samples up to there. */
    take(ms) {
      const [begin, until] = [from ?? end, (ms * rate) / 1000];
      from = null;
      return pieces.map(({ at, samples }) => samples.slice(Math.max(0, begin - at), Math.max(0, until - at)));
    },
  };
}
