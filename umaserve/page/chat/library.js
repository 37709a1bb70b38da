// The conversations that this browser keeps, in IndexedDB. Nothing is kept on the server.

const DATABASE = "umaserve";
const STORE = "conversations";
/** The contents of pictures, sounds and videos: {id, conversation, blob}. */
const MEDIA = "media";

export async function openLibrary() {
  const database = await new Promise((resolve, reject) => {
    const opening = indexedDB.open(DATABASE, 2);
    opening.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) opening.result.createObjectStore(STORE, { keyPath: "id" });
      opening.result.createObjectStore(MEDIA, { keyPath: "id" }).createIndex("conversation", "conversation");
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

  /** Drops the contents of a conversation's media that none of `turns` has. */
  async function sweep(conversation, turns) {
    const all = await ask("readonly", (store) => store.index("conversation").getAllKeys(conversation), MEDIA);
    const kept = new Set(mediaOf(turns).map(({ id }) => id));
    for (const id of all) if (!kept.has(id)) await ask("readwrite", (store) => store.delete(id), MEDIA);
  }

  const library = {
    get: (id) => ask("readonly", (store) => store.get(id)),
    async save(conversation) {
      await ask("readwrite", (store) => store.put(conversation));
      await sweep(conversation.id, conversation.turns);
    },
    async remove(id) {
      await ask("readwrite", (store) => store.delete(id));
      await sweep(id, {});
    },
    keep: (conversation, id, blob) => ask("readwrite", (store) => store.put({ id, conversation, blob }), MEDIA),
    content: async (id) => (await ask("readonly", (store) => store.get(id), MEDIA))?.blob,
    /** Of all media of these turns by their ids, in base64. Throws where one is not there. */
    async contents(turns) {
      const media = mediaOf(turns);
      if (media.length === 0) return new Map();
      const { toBase64 } = await import("./attach_media.js");
      const read = async ({ id, name }) => {
        const blob = await library.content(id);
        if (!blob) throw new Error(`${name} is not in this browser any more.`);
        return [id, await toBase64(blob)];
      };
      return new Map(await Promise.all(media.map(read)));
    },

    /** {id, title, changed} of those in which all words of `query` are said, the newest first. */
    async list(query = "") {
      const words = query.toLowerCase().split(/\s+/).filter(Boolean);
      const all = await library.all();
      const found = all.filter((each) => words.length === 0 || says(each, words));
      return found.map(({ id, title, changed }) => ({ id, title, changed })).sort((a, b) => b.changed - a.changed);
    },

    all: () => ask("readonly", (store) => store.getAll()),

    /** Calls `listener` when another tab has changed something. */
    onchange(listener) {
      others.onmessage = listener;
    },
  };
  return library;
}

export function mediaOf(turns) {
  return Object.values(turns).flatMap(({ media = [] }) => media);
}

function says({ title, turns }, words) {
  const text = [title, ...Object.values(turns).map((turn) => turn.text)].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}
