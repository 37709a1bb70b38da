// The conversations that this browser keeps, in IndexedDB. Nothing is kept on the server.

import { newId, ROOT } from "../answers/conversation.js";
import { SETTINGS, defaults } from "../answers/settings.js";

const DATABASE = "umaserve";
const STORE = "conversations";
const FORMAT = "umaserve-conversations";

export async function openLibrary() {
  const database = await new Promise((resolve, reject) => {
    const opening = indexedDB.open(DATABASE, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(STORE, { keyPath: "id" });
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
  const others = new BroadcastChannel(DATABASE);

  function ask(mode, make) {
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = make(transaction.objectStore(STORE));
      transaction.oncomplete = () => {
        if (mode === "readwrite") others.postMessage("changed");
        resolve(request.result);
      };
      transaction.onabort = () => reject(transaction.error);
    });
  }

  return {
    get: (id) => ask("readonly", (store) => store.get(id)),
    save: (conversation) => ask("readwrite", (store) => store.put(conversation)),
    remove: (id) => ask("readwrite", (store) => store.delete(id)),

    /** {id, title, changed} of those in which all words of `query` are said, the newest first. */
    async list(query = "") {
      const words = query.toLowerCase().split(/\s+/).filter(Boolean);
      const all = await ask("readonly", (store) => store.getAll());
      const found = all.filter((each) => words.length === 0 || says(each, words));
      return found.map(({ id, title, changed }) => ({ id, title, changed })).sort((a, b) => b.changed - a.changed);
    },

    /** All conversations as JSON. */
    async exported() {
      const conversations = await ask("readonly", (store) => store.getAll());
      return JSON.stringify({ format: FORMAT, version: 1, conversations });
    },

    /** Adds those of an exported file, beside what is there; returns how many. Throws on other files. */
    async imported(text) {
      const { format, conversations } = JSON.parse(text);
      if (format !== FORMAT || !Array.isArray(conversations)) throw new Error("not a file of conversations");
      const read = conversations.map(readConversation);
      for (const each of read) await this.save(each);
      return read.length;
    },

    /** Calls `listener` when another tab has changed something. */
    onchange(listener) {
      others.onmessage = listener;
    },
  };
}

function says({ title, turns }, words) {
  const text = [title, ...Object.values(turns).map((turn) => turn.text)].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}

/** What a file says of a conversation: known fields of known types, whatever else it has. */
function readConversation(value) {
  const [turns, chosen] = [{}, {}];
  const ids = new Map();
  for (const each of Object.values(value.turns)) ids.set(each.id, newId());
  for (const each of Object.values(value.turns)) {
    const parent = each.parent === ROOT ? ROOT : ids.get(each.parent);
    // A turn stands after the one before it, so nothing can go in circles.
    const placed = parent === ROOT || parent in turns;
    if (!placed || !["user", "assistant"].includes(each.role)) throw new Error("a turn without a place");
    const turn = { id: ids.get(each.id), parent, role: each.role, text: String(each.text) };
    if (each.role === "assistant") Object.assign(turn, readAnswer(each));
    turns[turn.id] = turn;
    chosen[parent] = turn.id;
  }
  for (const child of Object.values(value.chosen ?? {})) {
    const turn = turns[ids.get(child)];
    if (turn) chosen[turn.parent] = turn.id;
  }
  const [created, changed] = [Number(value.created) || Date.now(), Number(value.changed) || Date.now()];
  const about = { title: String(value.title), system: String(value.system), model: String(value.model) };
  return { id: newId(), ...about, created, changed, settings: readSettings(value.settings), turns, chosen };
}

/** Whether these are places in the text, each at least `least` after the one before it. */
function rises(places, least, text) {
  const inside = places.every((place) => Number.isInteger(place) && place >= 0 && place <= text.length);
  return inside && places.every((place, i) => place >= (places[i - 1] ?? 0) + least);
}

function readAnswer({ text, thoughts, tokens, marks, settings, end, model }) {
  const number = (one) => (Number.isFinite(one) ? one : 0);
  const readTokens = (tokens ?? []).map((token) => ({
    end: number(token.end),
    logprob: number(token.logprob),
    others: (token.others ?? []).map(([piece, logprob]) => [String(piece), number(logprob)]),
  }));
  const readMarks = (marks ?? []).map(({ at, values }) => ({ at: number(at), values: readSettings(values, {}) }));
  return {
    thoughts: String(thoughts ?? ""),
    tokens: rises(readTokens.map((token) => token.end), 1, text) ? readTokens : [],
    marks: rises(readMarks.map((mark) => mark.at), 0, text) ? readMarks : [],
    settings: settings && readSettings(settings),
    end: end === undefined ? undefined : String(end),
    model: String(model ?? ""),
  };
}

function readSettings(values, base = defaults()) {
  const known = SETTINGS.filter(({ name }) => Number.isFinite(values?.[name])).map(({ name }) => [name, values[name]]);
  return { ...base, ...Object.fromEntries(known) };
}
