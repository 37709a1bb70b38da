// All that one can do in the chat. Only these change its state.

import { addTurn, beginning, branches, newConversation, path, removeTurn, ROOT } from "../answers/conversation.js";
import { asAsked, defaults, presets, savePreset } from "../answers/settings.js";
import { copyText } from "../dom.js";
import { answering } from "./answering.js";
import { keeper } from "./kept.js";
import { isServers, places } from "./places.js";

const SAVE_MS = 3000;
/** A slider moves faster than anything need be kept. */
const SETTLED_MS = 300;
const NOTICE_MS = 8000;
const NOT_HERE = "This conversation is not in this browser: it was deleted, or had elsewhere.";
const NOT_THERE = "The server doesn't have this conversation for this key.";

/** The chat's state. `run` is the answer being written: {conversation, answer, phase, note}, from character `from` on. */
export function chatState(wide, storage) {
  const kept = keeper(storage);
  const { model, system, settings } = kept.beginning() ?? { model: "", system: "", settings: defaults() };
  const conversation = newConversation(model, system, settings);
  return {
    conversation,
    list: [],
    query: "",
    run: null,
    probabilities: false,
    draft: kept.draft(conversation),
    /** What goes with the next message: as a turn's media, each with its `blob`. */
    attached: [],
    editing: null,
    notice: "",
    /** Takes back what the notice tells of. */
    undo: null,
    /** Whether the server offers to keep conversations, and until when after their last change. */
    server: { offered: false, maxAgeS: null },
    /** Which drawers are open. */
    open: { list: wide, settings: false },
  };
}

/** `browser` is its library. `wide()`: whether there is room for the drawers beside the conversation. `tab` is storage that ends with the tab. */
export function chatActions({ store, api, browser, storage, tab, wide }) {
  const { state } = store;
  const kept = keeper(storage);
  /** What the timer saves. */
  let unsaved = null;
  let saveTimer = 0;
  let noticeTimer = 0;

  const update = store.update;

  function tell(text, undo = null) {
    clearTimeout(noticeTimer);
    noticeTimer = setTimeout(() => tell(""), NOTICE_MS);
    update(() => Object.assign(state, { notice: text, undo }));
  }

  const on = {
    moved: (before, conversation, fields) => {
      update(() => Object.assign(conversation, fields));
      kept.moveDraft(before, conversation);
      answers.renamed(conversation);
    },
    update,
    changed: () => relist(),
    terms: (terms) => update(() => (state.server = terms)),
  };
  const running = ({ id }) => (state.run?.conversation.id === id ? state.run.answer : undefined);
  const library = places({ api, browser, running, on, tell });

  function show(conversation) {
    const settings = { ...defaults(), ...conversation.settings };
    update(() => {
      Object.assign(conversation, { settings });
      Object.assign(state, { conversation, draft: kept.draft(conversation), editing: null });
      if (!wide()) state.open.list = false;
    });
  }

  async function relist() {
    const list = await library.list(state.query);
    update(() => (state.list = list));
  }

  function saveSoon(conversation, ms) {
    if (unsaved && unsaved !== conversation) save(unsaved);
    clearTimeout(saveTimer);
    unsaved = conversation;
    saveTimer = setTimeout(() => save(conversation), ms);
  }

  /** The settings, the system prompt or the model are others now. */
  function keepAbout() {
    const { conversation } = state;
    if (Object.keys(conversation.turns).length > 0) saveSoon(conversation, SETTLED_MS);
    else kept.keepBeginning(conversation);
  }

  function write(text) {
    update(() => (state.draft = text));
    try {
      kept.keepDraft(state.conversation, text);
    } catch (error) {
      tell(`This draft can't be kept in the browser: ${error.message}`);
    }
  }

  async function save(conversation) {
    clearTimeout(saveTimer);
    saveTimer = 0;
    unsaved = null;
    if (Object.keys(conversation.turns).length === 0) return;
    try {
      await library.save(conversation);
      await relist();
    } catch (error) {
      tell(`This conversation can't be kept in the browser: ${error.message}`);
    }
  }

  let loading = null;
  /** The tool servers, loaded with their first use. */
  const loadServers = () => (loading ??= import("../tools/servers.js").then(({ toolServers }) => toolServers(api, storage)));

  function ended(conversation) {
    if (!kept.entitles()) return;
    const named = import("./titles.js").then(({ entitle }) => entitle(api, conversation, actions.rename));
    named.catch((error) => tell(`The model gave no title: ${error.message}`));
  }

  const saveLater = (conversation) => saveTimer === 0 && saveSoon(conversation, SAVE_MS);
  const answers = answering({ store, api, library, tab, tell, save, saveLater, ended, loadServers });

  /** Of the settings; a running answer gets those that differ. */
  function change(wanted) {
    const { conversation, run: running } = state;
    const changed = Object.entries(wanted).filter(([name, value]) => conversation.settings[name] !== value);
    update(() => (conversation.settings = { ...conversation.settings, ...wanted }));
    keepAbout();
    if (running?.conversation === conversation && changed.length > 0) answers.modify(asAsked(Object.fromEntries(changed)).parameters);
  }

  /** `media` are those of a turn, and have a `blob` where it is not kept yet. */
  async function ask(parent, text, media = [], answered = answers.answerTo) {
    const { conversation } = state;
    if (state.run || !(text.trim() || media.length > 0)) return;
    kept.forgetBeginning();
    const entries = media.map(({ blob: _blob, text: _text, ...entry }) => entry);
    let turn;
    update(() => {
      if (Object.keys(conversation.turns).length === 0) conversation.wanted = kept.beginsThere();
      turn = addTurn(conversation, parent, "user", { text: text.trim(), ...(entries.length > 0 && { media: entries }) });
    });
    try {
      // All begun at once: the turn is shown meanwhile, and whoever reads them from now on waits until they are there.
      const kept = media.map(({ id, blob }) => blob && library.keep(conversation.id, id, blob));
      if (media.length > 0) await Promise.all(kept);
      answered(conversation, turn.id);
    } catch (error) {
      update(() => {
        removeTurn(conversation, turn);
        state.attached = media;
      });
      write(text);
      tell(`The browser can't keep what is attached: ${error.message}`);
    }
  }

  /** The conversation as it is here; what is being written in it is in no other copy. */
  async function held(id) {
    const here = [state.run?.conversation, state.conversation].find((each) => each?.id === id);
    if (here) return here;
    try {
      const found = await library.get(id);
      if (!found) tell(isServers(id) ? NOT_THERE : NOT_HERE);
      return found;
    } catch (error) {
      tell(`This conversation can't be read from the server: ${error.message}`);
      return undefined;
    }
  }

  const removing = async () => (await import("./removal.js")).removal({ library, update, save, tell });
  const actions = {
    // -- conversations
    open: async (id) => {
      if (unsaved?.id === id) await save(unsaved);
      const found = await held(id);
      if (!found) return false;
      show(found);
      await library.finish(found);
      return true;
    },
    takeUp: answers.takeUp,
    begin: () => {
      const { model, system, settings } = kept.own() ?? state.conversation;
      show(newConversation(model, system, { ...settings }));
      keepAbout();
    },
    remove: async (id) => {
      if (state.run?.conversation.id === id) return;
      try {
        await (await removing()).conversation(id);
      } catch (error) {
        return tell(`The server has not deleted this conversation: ${error.message}`);
      }
      kept.forgetDraft(id);
      if (state.conversation.id === id) actions.begin();
      return relist();
    },
    /** From the browser to the server, or back. */
    move: async (id) => {
      const conversation = await held(id);
      if (conversation && !running(conversation)) await library.move(conversation);
    },
    beginsThere: kept.beginsThere,
    beginThere: kept.beginThere,
    rename: async (id, title) => {
      const conversation = await held(id);
      if (!conversation || !title.trim()) return;
      update(() => Object.assign(conversation, { title: title.trim(), changed: Date.now() }));
      await save(conversation);
    },
    search: (query) => {
      update(() => (state.query = query));
      return relist();
    },
    exported: async () => (await import("./exported_file.js")).exported(library),
    /** Null where it can't be read. */
    markdown: async (id) => {
      const conversation = await held(id);
      return conversation ? (await import("./exported_file.js")).asMarkdown(conversation) : null;
    },
    imported: async (text) => {
      try {
        const { imported } = await import("./exported_file.js");
        tell(`Conversations imported: ${await imported(library, text)}.`);
      } catch {
        tell("This file is not one of exported conversations.");
      }
      await relist();
    },
    relist,
    look: library.look,
    /** Another tab has changed some; where `asks`, another browser may have, too. */
    refresh: async (asks) => {
      const shown = new Set([state.conversation, state.run?.conversation ?? state.conversation]);
      for (const conversation of shown) await library.refresh(conversation, asks);
      await relist();
    },

    // -- turns
    draft: write,
    send: () => {
      const { draft, attached } = state;
      if (state.run || !(draft.trim() || attached.length > 0)) return;
      write("");
      update(() => (state.attached = []));
      actions.say(draft, attached);
    },
    say: (text, media, answered) => ask(path(state.conversation).at(-1)?.id ?? ROOT, text, media, answered),
    /** As `say`, but the answer is held, as `answering` says: promises that. */
    converse: async (text, media, stop) => {
      let held = null;
      await actions.say(text, media, (conversation, parent) => (held = answers.hold(conversation, parent, stop)));
      return held;
    },
    contents: library.contents,
    attach: (medium) => update(() => state.attached.push(medium)),
    detach: (medium) => update(() => state.attached.splice(state.attached.indexOf(medium), 1)),
    content: library.content,
    edit: (turn) => update(() => (state.editing = turn ? turn.id : null)),
    resend: (turn, text) => {
      update(() => (state.editing = null));
      ask(turn.parent, text, turn.media);
    },
    /** Another answer beside this one, in somebody's own words. */
    rewrite: (answer, text) => {
      const { parent, model } = answer;
      update(() => {
        addTurn(state.conversation, parent, "assistant", { thoughts: "", tokens: [], marks: [], text, model, end: "edited" });
        state.editing = null;
      });
      save(state.conversation);
    },
    regenerate: (answer) => answers.instead(() => answers.answerTo(state.conversation, answer.parent)),
    goOn: (answer) => answers.goOn(state.conversation, answer),
    /** Another answer that begins like this one up to token `index`, and goes on with `text` instead of it. */
    branchAt: (answer, index, text) => answers.instead(() => {
      answers.answerTo(state.conversation, answer.parent, beginning(answer, index, text));
    }),
    walk: (turn, step) => update(() => {
      const all = branches(state.conversation, turn);
      const next = all[all.indexOf(turn) + step];
      if (next) state.conversation.chosen[turn.parent] = next.id;
      save(state.conversation);
    }),
    removeTurn: async (turn) => {
      const { conversation } = state;
      if (state.run) return;
      const isAll = turn.parent === ROOT && branches(conversation, turn).length === 1;
      await (isAll ? actions.remove(conversation.id) : (await removing()).turn(conversation, turn));
    },

    // -- steering
    stop: answers.stop,
    pause: answers.pause,
    resume: answers.resume,
    set: (name, value) => change({ [name]: value }),
    system: (text) => {
      update(() => (state.conversation.system = text));
      keepAbout();
    },
    model: (name) => {
      update(() => (state.conversation.model = name));
      keepAbout();
    },

    // -- tools
    servers: loadServers,
    decide: answers.decide,
    /** `how`: "ask", "always" or "never", or null where it is switched off. */
    tool: (address, name, how) => {
      const { conversation } = state;
      update(() => {
        const on = ((conversation.tools ??= {})[address] ??= {});
        if (how) on[name] = how;
        else delete on[name];
        if (Object.keys(on).length === 0) delete conversation.tools[address];
      });
      keepAbout();
    },
    forgetServer: (address) => {
      update(() => delete state.conversation.tools?.[address]);
      keepAbout();
    },
    probabilities: (on) => update(() => (state.probabilities = on)),
    preset: (name) => {
      const preset = presets(storage).find((each) => each.name === name);
      if (!preset) return;
      change(preset.settings);
      actions.system(preset.system);
    },
    keepPreset: (name) => {
      const { settings, system } = state.conversation;
      savePreset(storage, { name, settings, system });
      tell(`Preset “${name}” is kept in this browser.`);
    },
    /** `own`: new conversations begin with what this one has; else with the page's defaults, or what the last one had. */
    defaults: (own) => {
      if (own) kept.keepOwn(state.conversation);
      else kept.forgetOwn();
      tell(own ? "New conversations begin with these settings, this system prompt and this model." : "Your defaults are forgotten.");
    },
    /** Whether the model is asked for titles. */
    entitles: kept.entitles,
    entitle: kept.entitle,
    hasOwnDefaults: () => kept.own() !== null,

    // -- what is shown
    copy: async (text) => tell((await copyText(text)) ? "Copied." : "The browser lets this page copy nothing: select the text, and press Ctrl+C."),
    toggle: (drawer, open = !state.open[drawer]) => update(() => {
      // Where they lie over the conversation, one would lie over the other.
      if (open && !wide()) Object.assign(state.open, { list: false, settings: false });
      state.open[drawer] = open;
    }),
    tell,
    undo: async () => {
      const { undo } = state;
      tell("");
      await undo?.();
    },
  };
  return actions;
}
