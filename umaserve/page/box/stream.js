// The events of /api/box, for as long as somebody looks: the stream ends with the view, and while the tab is hidden.

const RETRY_MS = [1000, 2000, 4000, 8000];

/**
 * `on.event(box)` gets each event, `on.lost(error)` why there is none for now; it is tried again, unless that is for
 * somebody else to change.
 */
export function watchBox(api, signal, on) {
  let current = null;
  let timer = 0;
  let tries = 0;

  function begin() {
    if (current !== null || document.hidden) return;
    clearTimeout(timer);
    current = new AbortController();
    read(current);
  }

  function end() {
    clearTimeout(timer);
    current?.abort();
    current = null;
  }

  async function read(mine) {
    let error = null;
    try {
      const response = await api.fetch("/api/box", { signal: mine.signal });
      for await (const box of events(response)) {
        if (mine.signal.aborted) return;
        tries = 0;
        on.event(box);
      }
    } catch (failed) {
      error = failed;
    }
    if (mine.signal.aborted) return;
    current = null;
    on.lost(error);
    if (error?.status === 401 || error?.status === 403) return;
    timer = setTimeout(begin, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]);
    tries += 1;
  }

  // With another key it may be allowed.
  addEventListener("newkey", begin, { signal });
  document.addEventListener("visibilitychange", () => (document.hidden ? end() : begin()), { signal });
  signal.addEventListener("abort", end);
  begin();
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const event of whole) if (event.startsWith("data: ")) yield JSON.parse(event.slice(6));
  }
}
