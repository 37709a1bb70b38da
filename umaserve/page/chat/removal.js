// Deletes conversations and turns, so that it can be taken back for a while.

import { removeTurn } from "../answers/conversation.js";
import { mediaOf } from "./library.js";
import { beginAgain } from "./places.js";

/** `tell(text, undo)` says what was done, and offers to take it back. */
export function removal({ library, update, save, tell }) {
  /** The contents of these turns' media, which go with their turns. */
  async function contentsOf(turns) {
    const read = async ({ id }) => [id, await library.content(id)];
    return Promise.all(mediaOf(turns).map(read));
  }

  async function bringBack(conversation, contents) {
    for (const [id, blob] of contents) if (blob) await library.keep(conversation.id, id, blob);
    conversation.changed = Date.now();
    await save(conversation);
  }

  return {
    async conversation(id) {
      const conversation = await library.get(id);
      if (!conversation) return library.remove(id);
      const contents = await contentsOf(conversation.turns);
      await library.remove(id);
      tell(`“${conversation.title}” is deleted.`, () => {
        beginAgain(conversation);
        return bringBack(conversation, contents);
      });
      return undefined;
    },
    async turn(conversation, turn) {
      const before = { turns: { ...conversation.turns }, chosen: { ...conversation.chosen } };
      const contents = await contentsOf(conversation.turns);
      update(() => removeTurn(conversation, turn));
      await save(conversation);
      tell("Deleted.", () => {
        update(() => Object.assign(conversation, before));
        return bringBack(conversation, contents);
      });
    },
  };
}
