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
    /** Calls `listener(state)` now and after changes; returns what ends that. */
    subscribe(listener) {
      listeners.add(listener);
      listener(state);
      return () => listeners.delete(listener);
    },
  };
}
