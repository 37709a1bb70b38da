// The browser's library and the server's as one.
//
// What the server keeps is in this browser only as long as it has changes that the server doesn't have yet: while an
// answer is written, and where it can't be saved there.

import { newId } from "../answers/conversation.js";
import { mediaOf, says } from "./library.js";
import { merged } from "./merged.js";
import { isServers } from "./places.js";
import { serverLibrary } from "./server_library.js";
import { takeOver } from "./taken_over.js";

/** Of other tabs, that the server's have changed. */
const CHANNEL = "umaserve.server";

/**
 * `browser` is the browser's library. `running(conversation)` is the answer that is being written in it, if any is.
 * `on.moved(before, conversation, fields)` is called when its id is to be another, `on.update(change)` with what others
 * have changed in it, `on.changed()` when the list has become another, `on.terms({offered, maxAgeS})` with what the
 * server offers. `tell(text)` says what went wrong.
 */
export function bothPlaces({ api, browser, running, on, tell }) {
  const server = serverLibrary(api);
  let listing = { entries: [], onDisk: false, maxAgeS: null };
  /** The contents of the media of the server's. */
  const blobs = new Map();
  /** What was read to be searched: {changed, conversation} by id. */
  const texts = new Map();
  /** Those that are being saved on the server, and whether they have changed meanwhile. */
  const saving = new Map();
  const others = new BroadcastChannel(CHANNEL);
  others.onmessage = () => library.look();

  function take(found) {
    for (const [id, blob] of found) blobs.set(id, blob);
  }

  const offers = () => api.key !== undefined && listing.onDisk;

  async function read(id) {
    const { conversation, blobs: found } = await server.read(id);
    take(found);
    return conversation;
  }

  /** What the list says of it, now that this tab has changed it; null where it is no more. */
  function note(id, entry) {
    listing.entries = listing.entries.filter((each) => each.id !== id);
    if (entry) listing.entries.push({ id: entry.id, title: entry.title, changed: entry.changed });
    others.postMessage("changed");
    on.changed();
  }

  /** Keeps it in the browser, with the contents of its media. */
  async function saveHere(conversation) {
    for (const { id } of mediaOf(conversation.turns)) {
      if (blobs.has(id) && !(await browser.has(id))) await browser.keep(conversation.id, id, blobs.get(id));
    }
    await browser.save(conversation);
  }

  async function remember({ turns }) {
    for (const { id } of mediaOf(turns)) {
      const blob = await browser.content(id);
      if (blob) blobs.set(id, blob);
    }
  }

  /** Gives it the id that its place has for it, and takes it there from where it was. */
  async function become(conversation, id, state) {
    const before = conversation.id;
    await remember(conversation);
    on.moved(before, conversation, { id, server: state, wanted: undefined });
    if (!isServers(id) || running(conversation)) await saveHere(conversation);
    await browser.remove(before);
  }

  /** Takes over what another browser, or a program, has made of it. */
  async function hear(conversation) {
    const news = await server.news(conversation);
    if (!news) return;
    take(news.blobs);
    on.update(() => takeOver(conversation, news.found, running(conversation)));
  }

  /** Others' changes come first, so that none is lost. */
  async function write(conversation) {
    await hear(conversation);
    await server.write(conversation, conversation.id, conversation.server, library.contents);
  }

  async function moveThere(conversation) {
    const id = await server.create();
    const state = { held: {}, about: {}, last: null };
    try {
      await server.write(conversation, id, state, library.contents);
    } catch (error) {
      // Where this fails too, what is there has no title, is not listed, and goes by its age.
      await server.remove(id).catch(() => {});
      throw error;
    }
    await become(conversation, id, state);
    note(id, conversation);
  }

  /** Brings it to the server, unless an answer is being written in it: then its end does. */
  async function save(conversation) {
    if (saving.has(conversation)) return saving.set(conversation, true);
    if (running(conversation)) return undefined;
    try {
      do {
        saving.set(conversation, false);
        if (isServers(conversation.id)) await write(conversation);
        else await moveThere(conversation);
        await remember(conversation);
        if (saving.get(conversation) || running(conversation)) continue;
        await browser.remove(conversation.id);
      } while (saving.get(conversation) && !running(conversation));
      note(conversation.id, conversation);
    } catch (error) {
      await failed(conversation, error);
    } finally {
      saving.delete(conversation);
      on.changed();
    }
    return undefined;
  }

  async function failed(conversation, error) {
    const name = `“${conversation.title}”`;
    if (!isServers(conversation.id)) {
      delete conversation.wanted;
      await browser.save(conversation);
      tell(`${name} stays in this browser: ${wordsOf(error)}.`);
    } else if (error.status === 404) {
      const { id } = conversation;
      await become(conversation, newId());
      note(id, null);
      tell(`The server doesn't have ${name} any more, for this key. It is kept in this browser now.`);
    } else tell(`What is new in ${name} is kept in this browser until it can be saved on the server: ${wordsOf(error)}.`);
  }

  /** Why nothing was heard of it; what the page's frame tells by itself is not told again. */
  function told({ title }, { status, message }) {
    if (status === 404) tell(`The server doesn't have “${title}” any more. What is added to it is kept in this browser.`);
    else if (status !== 0 && status !== 401) tell(`“${title}” can't be read from the server: ${message}`);
  }

  async function searched(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (words.length === 0) return listing.entries;
    try {
      for (const { id, changed } of listing.entries) {
        if (texts.get(id)?.changed !== changed) texts.set(id, { changed, conversation: await read(id) });
      }
    } catch (error) {
      tell(`The server's conversations can't be searched: ${wordsOf(error)}.`);
    }
    return listing.entries.filter(({ id }) => texts.has(id) && says(texts.get(id).conversation, words));
  }

  const library = {
    keep: browser.keep,
    content: async (id) => (await browser.content(id)) ?? blobs.get(id),
    contents: (turns) => browser.contents(turns, library.content),

    /** Undefined where there is none. Throws `ApiError` where only the server could know. */
    async get(id) {
      const busy = [...saving.keys()].find((each) => each.id === id);
      if (busy) return busy;
      const here = await browser.get(id);
      if (!isServers(id)) return here;
      try {
        const there = await read(id);
        if (!here) return there;
        return { ...here, ...merged(here, there) };
      } catch (error) {
        if (here) return here;
        if (error.status === 404) return undefined;
        throw error;
      }
    },

    /** Promises that it is kept; what is the server's is then brought there. */
    async save(conversation) {
      // Known before it is kept here: what is kept from now on must stay until it is on the server, too.
      if (saving.has(conversation)) saving.set(conversation, true);
      await saveHere(conversation);
      if (isServers(conversation.id) || (conversation.wanted && offers())) save(conversation);
    },

    /** Throws `ApiError` where the server could not delete it. */
    async remove(id) {
      if (isServers(id)) await server.remove(id);
      await browser.remove(id);
      if (isServers(id)) note(id, null);
    },

    /** {id, title, changed, isSaved} of those in which all words of `query` are said, the newest first. */
    async list(query = "") {
      const here = await browser.list(query);
      const ids = new Set(here.map(({ id }) => id));
      const busy = new Set([...saving.keys()].map(({ id }) => id));
      const isSaved = ({ id }) => busy.has(id) || running({ id }) !== undefined;
      const there = (await searched(query)).filter(({ id }) => !ids.has(id)).map((each) => ({ ...each, isSaved: true }));
      const all = [...here.map((each) => ({ ...each, isSaved: isSaved(each) })), ...there];
      return all.sort((a, b) => b.changed - a.changed);
    },

    /** All; where the server can't be asked, those of the browser, and it is told. */
    async all() {
      const here = await browser.all();
      const ids = new Set(here.map(({ id }) => id));
      try {
        const there = [];
        for (const { id } of listing.entries) if (!ids.has(id)) there.push(await read(id));
        return [...here, ...there];
      } catch (error) {
        tell(`The server's conversations are not among these: ${wordsOf(error)}.`);
        return here;
      }
    },

    /** Asks the server what it keeps for this tab's key. */
    async look() {
      try {
        listing = api.key ? await server.list() : { entries: [], onDisk: false, maxAgeS: null };
        if (!listing.onDisk) listing.entries = [];
      } catch (error) {
        // The page's frame tells both by itself.
        if (error.status !== 0 && error.status !== 401) tell(`The server's conversations can't be listed: ${wordsOf(error)}.`);
      }
      on.terms({ offered: offers(), maxAgeS: listing.maxAgeS });
      on.changed();
    },

    /** Takes over what another browser has made of it, or brings there what is in this one only. */
    async meet(conversation) {
      if (!isServers(conversation.id) || running(conversation) || saving.has(conversation)) return;
      if (await browser.get(conversation.id)) save(conversation);
      else await hear(conversation).catch((error) => told(conversation, error));
    },

    /** Brings to the server what of its own is in this browser only. */
    async finish(conversation) {
      if (isServers(conversation.id) && (await browser.get(conversation.id))) save(conversation);
    },

    /** From the browser to the server, or back; it says itself where that fails. */
    async move(conversation) {
      if (!isServers(conversation.id)) return save(conversation);
      const { id } = conversation;
      await become(conversation, newId());
      try {
        await server.remove(id);
        note(id, null);
      } catch (error) {
        tell(`“${conversation.title}” is in this browser now, but it can't be deleted on the server: ${wordsOf(error)}.`);
      }
      return on.changed();
    },
  };
  return library;
}

/** Why something can't be done, as the end of a sentence. */
function wordsOf({ status, message }) {
  if (status === 0) return "it can't be reached";
  if (status === 413) return "it has no room for that. Delete some of it, or begin a new one";
  return message.replace(/\.$/, "");
}
