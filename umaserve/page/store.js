// One state, and those who show it. Changes go in by `update` only; listeners hear of them once a frame, all together.

export function createStore(state) {
  const listeners = new Set();
  let asked = false;

  function tell() {
    asked = false;
    for (const listener of [...listeners]) listener(state);
  }

  return {
    state,
    /** Applies `change(state)`. */
    update(change) {
      change(state);
      if (asked) return;
      asked = true;
      requestAnimationFrame(tell);
    },
    /** Calls `listener(state)` now and after changes, until `signal` ends that. */
    subscribe(listener, signal) {
      listeners.add(listener);
      signal?.addEventListener("abort", () => listeners.delete(listener));
      listener(state);
    },
  };
}
