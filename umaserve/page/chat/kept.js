// What this browser keeps besides conversations: drafts, and what a new conversation begins with.

import { defaults } from "../answers/settings.js";

/** With the conversation's id; of one that has yet to begin, without. */
const DRAFT = "umaserve.draft.";
/** Of the conversation that has yet to begin: {model, system, settings}. */
const NEW = "umaserve.new";
/** "on" where the model is asked for titles. */
const TITLES = "umaserve.titles";
/** "server" where new conversations are kept there. */
const PLACE = "umaserve.place";
/** Somebody's own, of the same form. */
const OWN = "umaserve.defaults";

export function keeper(storage) {
  const draftKey = ({ id, turns }) => (Object.keys(turns).length > 0 ? DRAFT + id : DRAFT);
  const aboutOf = ({ model, system, settings }) => JSON.stringify({ model, system, settings });

  /** Null where there is none, or one that another version has written. */
  function about(key) {
    try {
      const { model, system, settings } = JSON.parse(storage.getItem(key));
      return { model: String(model), system: String(system), settings: { ...defaults(), ...settings } };
    } catch {
      return null;
    }
  }

  return {
    draft: (conversation) => storage.getItem(draftKey(conversation)) ?? "",
    /** Throws where the browser has no room for it. */
    keepDraft(conversation, text) {
      if (text) storage.setItem(draftKey(conversation), text);
      else storage.removeItem(draftKey(conversation));
    },
    moveDraft(before, { id }) {
      const draft = storage.getItem(DRAFT + before);
      if (draft) storage.setItem(DRAFT + id, draft);
      storage.removeItem(DRAFT + before);
    },
    forgetDraft: (id) => storage.removeItem(DRAFT + id),
    /** What the conversation that has yet to begin was left with. */
    beginning: () => about(NEW) ?? about(OWN),
    keepBeginning: (conversation) => storage.setItem(NEW, aboutOf(conversation)),
    forgetBeginning: () => storage.removeItem(NEW),
    entitles: () => storage.getItem(TITLES) === "on",
    entitle: (on) => storage.setItem(TITLES, on ? "on" : "off"),
    beginsThere: () => storage.getItem(PLACE) === "server",
    beginThere: (on) => storage.setItem(PLACE, on ? "server" : "browser"),
    own: () => about(OWN),
    keepOwn: (conversation) => storage.setItem(OWN, aboutOf(conversation)),
    forgetOwn: () => storage.removeItem(OWN),
  };
}
