// A conversation has a place, this browser or the server, and its id says which. The server's are loaded with their first
// use: without a key there are none.

import { ApiError } from "../api.js";
import { newId } from "../answers/conversation.js";

const BOTH = ["get", "save", "remove", "list", "all", "keep", "content", "contents", "look", "meet", "finish", "move"];

export const isServers = (id) => id.startsWith("conv_");

/** Has one that was deleted kept anew where it was, once it is saved. */
export function beginAgain(conversation) {
  if (isServers(conversation.id)) Object.assign(conversation, { id: newId(), server: undefined, wanted: true });
}

/** The library of both, by the arguments of `bothPlaces`. */
export function places({ api, browser, running, on, tell }) {
  let loading = null;

  const alone = { ...browser, look() {}, finish() {} };

  /** The browser's alone, as long as that is all. */
  async function needed([first]) {
    const there = isServers(first?.id ?? String(first));
    if (!loading && !api.key && !there) return alone;
    loading ??= import("./both_places.js").then(({ bothPlaces }) => bothPlaces({ api, browser, running, on, tell }));
    try {
      return await loading;
    } catch {
      loading = null;
      if (there) throw new ApiError(0, "The server can't be reached.");
      return alone;
    }
  }

  const library = Object.fromEntries(BOTH.map((name) => [name, async (...given) => (await needed(given))[name](...given)]));

  /** Takes over what another tab has made of it; where `asks`, another browser, too. */
  library.refresh = async (conversation, asks) => {
    const here = await browser.get(conversation.id);
    if (here?.changed > conversation.changed) {
      const { takeOver } = await import("./taken_over.js");
      const { title, changed, turns, chosen, server } = here;
      on.update(() => takeOver(conversation, { title, changed, turns, chosen, ...(server && { server }) }, running(conversation)));
    } else if (asks && isServers(conversation.id)) await library.meet(conversation);
  };
  return library;
}
