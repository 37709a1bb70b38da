// The conversations that this browser keeps, in IndexedDB.

const DATABASE = "umaserve";
const STORE = "conversations";
/** Of each conversation {id, title, changed}: to list them, none need be read. */
const LISTING = "listing";
/** The contents of pictures, sounds and videos: {id, conversation, blob}. */
const MEDIA = "media";

export async function openLibrary() {
  const database = await new Promise((resolve, reject) => {
    const opening = indexedDB.open(DATABASE, 3);
    opening.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) opening.result.createObjectStore(STORE, { keyPath: "id" });
      if (oldVersion < 2) {
        opening.result.createObjectStore(MEDIA, { keyPath: "id" }).createIndex("conversation", "conversation");
      }
      const listing = opening.result.createObjectStore(LISTING, { keyPath: "id" });
      opening.transaction.objectStore(STORE).openCursor().onsuccess = ({ target: { result: cursor } }) => {
        if (!cursor) return;
        listing.put(entryOf(cursor.value));
        cursor.continue();
      };
    };
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => reject(opening.error);
  });
  const others = new BroadcastChannel(DATABASE);

  // A later version of the page, in another tab, needs it closed.
  database.onversionchange = () => database.close();

  function ask(mode, make, name = STORE) {
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(name, mode);
      const request = make(transaction.objectStore(name));
      transaction.oncomplete = () => {
        if (mode === "readwrite") others.postMessage("changed");
        resolve(request.result);
      };
      transaction.onabort = () => reject(transaction.error);
    });
  }

  /** What the listing says of it changes with the conversation, or neither does. */
  function keepWhole(change) {
    return new Promise((resolve, reject) => {
      const transaction = database.transaction([STORE, LISTING], "readwrite");
      change(transaction.objectStore(STORE), transaction.objectStore(LISTING));
      transaction.oncomplete = () => {
        others.postMessage("changed");
        resolve();
      };
      transaction.onabort = () => reject(transaction.error);
    });
  }

  /** Drops the contents of a conversation's media that none of `turns` has. */
  async function sweep(conversation, turns) {
    const all = await ask("readonly", (store) => store.index("conversation").getAllKeys(conversation), MEDIA);
    const kept = new Set(mediaOf(turns).map(({ id }) => id));
    for (const id of all) if (!kept.has(id)) await ask("readwrite", (store) => store.delete(id), MEDIA);
  }

  const library = {
    get: (id) => ask("readonly", (store) => store.get(id)),
    async save(conversation) {
      await keepWhole((store, listing) => {
        store.put(conversation);
        listing.put(entryOf(conversation));
      });
      await sweep(conversation.id, conversation.turns);
    },
    async remove(id) {
      await keepWhole((store, listing) => {
        store.delete(id);
        listing.delete(id);
      });
      await sweep(id, {});
    },
    keep: (conversation, id, blob) => ask("readwrite", (store) => store.put({ id, conversation, blob }), MEDIA),
    has: async (id) => (await ask("readonly", (store) => store.getKey(id), MEDIA)) !== undefined,
    content: async (id) => (await ask("readonly", (store) => store.get(id), MEDIA))?.blob,
    /**
     * Of all media of these turns by their ids: texts as they are, others in base64. `find` promises a content; throws
     * where one is not there.
     */
    async contents(turns, find = library.content) {
      const media = mediaOf(turns);
      if (media.length === 0) return new Map();
      const { toBase64 } = await import("./attach_media.js");
      const read = async ({ id, name, kind }) => {
        const blob = await find(id);
        if (!blob) throw new Error(`${name} is not in this browser any more.`);
        return [id, await (kind === "text" ? blob.text() : toBase64(blob))];
      };
      return new Map(await Promise.all(media.map(read)));
    },

    /** {id, title, changed} of those in which all words of `query` are said, the newest first. */
    async list(query = "") {
      const words = query.toLowerCase().split(/\s+/).filter(Boolean);
      const found = words.length > 0
        ? (await library.all()).filter((each) => says(each, words)).map(entryOf)
        : await ask("readonly", (store) => store.getAll(), LISTING);
      return found.sort((a, b) => b.changed - a.changed);
    },

    all: () => ask("readonly", (store) => store.getAll()),

    /** Calls `listener` when another tab has changed something. */
    onchange(listener) {
      others.onmessage = listener;
    },
  };
  return library;
}

function entryOf({ id, title, changed }) {
  return { id, title, changed };
}

export function mediaOf(turns) {
  return Object.values(turns).flatMap(({ media = [] }) => media);
}

export function says({ title, turns }, words) {
  const text = [title, ...Object.values(turns).map((turn) => turn.text)].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}
