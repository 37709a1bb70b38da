// One state, and those who show it. Changes go in by `update` only; listeners hear of them once a frame, all together.

export function createStore(state) {
  const listeners = new Set();
  let asked = false;

  function tell() {
    asked = false;
    for (const listener of [...listeners]) listener(state);
  }

  const store = {
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
    /** The same store for one who leaves by `signal`, and all its listeners with it. */
    until: (signal) => ({ ...store, subscribe: (listener) => store.subscribe(listener, signal) }),
  };
  return store;
}
