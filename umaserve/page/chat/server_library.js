// The conversations that the daemon keeps for this tab's key, over /v1/conversations.

import { merged } from "./merged.js";
import { aboutOf, itemsOf, metadataOf, printOf, readAbout, readMetadata, turnsOf } from "./server_items.js";

const PATH = "/v1/conversations";
const PAGE = 100;
/** The API's, and far from the largest body. */
const MOST_ITEMS = 20;
const MOST_CHARACTERS = 200_000;

/**
 * A conversation of the server's has `server`: {held: {turn: {ids, print}}, about, last}, what the server had when it
 * was last asked: the items of each turn, the texts about it, the id of its last item.
 */
export function serverLibrary(api) {
  const pathOf = (id) => `${PATH}/${encodeURIComponent(id)}`;

  async function send(method, path, body) {
    const headers = { "Content-Type": "application/json" };
    const response = await api.fetch(path, { method, headers, body: body && JSON.stringify(body) });
    return response.json();
  }

  async function pages(path, order) {
    const found = [];
    let page;
    do {
      const after = page ? `&after=${encodeURIComponent(page.last_id)}` : "";
      page = await api.json(`${path}?limit=${PAGE}&order=${order}${after}`);
      found.push(...page.data);
    } while (page.has_more);
    return { found, page };
  }

  /** What is gone already is as good as deleted. */
  async function drop(path) {
    try {
      await send("DELETE", path);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
  }

  async function add(id, items) {
    let [batch, size] = [[], 0];
    for (const item of items) {
      const { length } = JSON.stringify(item);
      if (batch.length === MOST_ITEMS || (batch.length > 0 && size + length > MOST_CHARACTERS)) {
        await send("POST", `${pathOf(id)}/items`, { items: batch });
        [batch, size] = [[], 0];
      }
      batch.push(item);
      size += length;
    }
    if (batch.length > 0) await send("POST", `${pathOf(id)}/items`, { items: batch });
  }

  const library = {
    /** {entries, onDisk, maxAgeS}: entries are {id, title, changed} of those that have a title. */
    async list() {
      const { found, page } = await pages(PATH, "desc");
      const all = found.map(({ id, created_at: created, metadata }) => ({ id, created, ...readMetadata(metadata) }));
      const entries = all.filter(({ title }) => title).map(({ id, title, changed, created }) => {
        return { id, title, changed: Number(changed) || created * 1000 };
      });
      return { entries, onDisk: page.on_disk, maxAgeS: page.max_age_s };
    },

    /** {conversation, blobs}: `blobs` has the contents of its media by their ids. */
    async read(id) {
      const [{ metadata, created_at: created }, { found, page }] = await Promise.all([api.json(pathOf(id)), pages(`${pathOf(id)}/items`, "asc")]);
      const { turns, held, blobs } = turnsOf(found);
      const about = readMetadata(metadata);
      const server = { held, about, last: page.last_id };
      const conversation = { id, created: created * 1000, ...readAbout(about, turns), turns, server };
      return { conversation, blobs };
    },

    /** Promises the id of a new one. Without a title none is listed: so nobody finds one half of whose turns are there. */
    create: async () => (await send("POST", PATH, {})).id,

    remove: (id) => drop(pathOf(id)),

    /** What another browser, or a program, has made of it since then; null where there is nothing. */
    async news(conversation) {
      const path = pathOf(conversation.id);
      const [{ metadata }, { first_id: last }] = await Promise.all([api.json(path), api.json(`${path}/items?limit=1`)]);
      const { server } = conversation;
      if (last === server.last && JSON.stringify(readMetadata(metadata)) === JSON.stringify(server.about)) return null;
      const { conversation: there, blobs } = await library.read(conversation.id);
      return { found: merged(conversation, there), blobs };
    },

    /**
     * Brings what has changed to the server: where it fails, another try goes on from there. `contents(turns)` promises
     * those of media, as `itemsOf` takes them.
     */
    async write({ turns, ...conversation }, id, server, contents) {
      const about = aboutOf({ turns, ...conversation });
      const metadata = metadataOf(about);
      const changed = Object.values(turns).filter((turn) => server.held[turn.id]?.print !== printOf(turn));
      const known = await contents(changed);
      const written = changed.map((turn) => ({ id: turn.id, print: printOf(turn), items: itemsOf(turn, known) }));
      const gone = Object.keys(server.held).filter((each) => !turns[each]);
      for (const each of [...gone, ...written.map((turn) => turn.id)]) {
        for (const item of server.held[each]?.ids ?? []) await drop(`${pathOf(id)}/items/${encodeURIComponent(item)}`);
        delete server.held[each];
      }
      // Whether they have come there nobody knows until the server says so.
      for (const { id: turn, items } of written) server.held[turn] = { ids: items.map((item) => item.id), print: "" };
      const items = written.flatMap((turn) => turn.items);
      await add(id, items);
      for (const { id: turn, print } of written) server.held[turn].print = print;
      const unchanged = items.length === 0 && gone.length === 0 && JSON.stringify(server.about) === JSON.stringify(about);
      if (!unchanged) await send("POST", pathOf(id), { metadata });
      server.about = about;
      server.last = (await api.json(`${pathOf(id)}/items?limit=1`)).first_id;
    },
  };
  return library;
}
