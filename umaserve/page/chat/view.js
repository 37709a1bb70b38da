// The chat: its parts, put together.

import { h, iconButton } from "../dom.js";
import { createStore } from "../store.js";
import { chatActions, chatState } from "./actions.js";
import { followAddress } from "./address.js";
import { composer } from "./composer.js";
import { openLibrary } from "./library.js";
import { conversationList } from "./list.js";
import { modelPicker } from "./models.js";
import { settingsPanel } from "./panel.js";
import { chatSpeech } from "./speech.js";
import { toolsButton } from "./tools.js";
import { turnsView } from "./turns.js";
import { voice } from "./voice.js";

const EXAMPLES = [
  "Explain the tides to a child of ten",
  "Write a Python function that finds the longest word in a text",
  "Plan five simple dinners for two, with a list of what to buy",
  "What speaks for and against working at night?",
];
const wide = matchMedia("(min-width: 60rem)");
/** What outlives the view: an answer is written to its end, whatever one looks at. */
let chat = null;

async function begun({ api, storage }) {
  const browser = await openLibrary();
  const whole = createStore(chatState(wide.matches, storage));
  const actions = chatActions({ store: whole, api, browser, storage, tab: sessionStorage, wide: () => wide.matches });
  browser.onchange(() => actions.refresh(false));
  addEventListener("newkey", actions.look);
  await actions.takeUp();
  return { whole, actions };
}

export async function mount(root, app, signal) {
  chat ??= begun(app).catch((error) => {
    chat = null;
    throw error;
  });
  const { whole, actions } = await chat;
  if (signal.aborted) return;
  const store = whole.until(signal);
  const { state } = store;
  const speech = chatSpeech(app, store, actions);
  const talking = voice(app, store, actions, speech);
  const writing = composer(store, actions, app, [toolsButton(store, actions), speech.node, talking.button]);

  const toggle = (name, drawer, label) => {
    return iconButton(name, label, () => actions.toggle(drawer), { "aria-controls": label.toLowerCase() });
  };
  const toggles = { list: toggle("list", "list", "Conversations"), settings: toggle("sliders", "settings", "Settings") };
  const notice = h("p.notice", { role: "status" });
  const undo = h("button.quiet", { onclick: () => actions.undo(), hidden: true }, "Undo");
  const veil = h("div.veil", { onclick: () => closeDrawers() });
  const add = iconButton("add", "New conversation (Alt+N)", () => {
    actions.begin();
    writing.focus();
  });
  app.bar.start.replaceChildren(toggles.list);
  app.bar.end.replaceChildren(modelPicker(app, store, actions), add, toggles.settings);
  const over = (event) => event.dataTransfer.types.includes("Files") && event.preventDefault();
  const dropped = { ondragover: over, ondrop: writing.drop };
  const examples = h("ul.examples", { "aria-label": "Examples" }, EXAMPLES.map((text) => h("li", {}, h("button", { onclick: () => begin(text) }, text))));
  const main = h("main", dropped, turnsView(store, actions, speech), h("div.told", {}, notice, undo), talking.place, writing.node, examples);
  root.replaceChildren(conversationList(store, actions), veil, main, settingsPanel(store, actions, app.storage));

  function begin(text) {
    actions.draft(text);
    writing.focus();
  }

  function closeDrawers() {
    for (const drawer of ["list", "settings"]) actions.toggle(drawer, false);
  }

  function onkeydown(event) {
    const { run } = state;
    // What lies open over the page is closed by it first, which the browser does.
    if (event.key === "Escape" && document.querySelector(":popover-open")) return;
    if (event.key === "Escape" && !event.defaultPrevented) {
      if (!wide.matches && (state.open.list || state.open.settings)) closeDrawers();
      else if (run) actions.stop();
      else speech.stop();
    } else if (event.altKey && event.code === "KeyN") add.click();
    else if (event.altKey && event.code === "KeyP" && run) run.phase === "paused" ? actions.resume() : actions.pause();
    else if (event.altKey && event.code === "KeyS") actions.toggle("settings");
    else if (event.altKey && event.code === "KeyL") actions.toggle("list");
    else return;
    event.preventDefault();
  }

  let running = false;
  store.subscribe(() => {
    if (running && !state.run) app.refreshModels(); // It may have been loaded for this answer.
    running = state.run !== null;
    notice.textContent = state.notice;
    undo.hidden = state.undo === null;
    const isEmpty = Object.keys(state.conversation.turns).length === 0;
    main.classList.toggle("empty", isEmpty);
    examples.hidden = !isEmpty;
    for (const [drawer, button] of Object.entries(toggles)) button.ariaExpanded = String(state.open[drawer]);
    veil.hidden = !state.open.list && !state.open.settings;
  });
  addEventListener("keydown", onkeydown, { signal });
  signal.addEventListener("abort", () => {
    speech.stop();
    talking.close();
  });
  await followAddress(app, store, actions, signal);
  await actions.relist();
  writing.focus();
  // Who comes back may have gone on elsewhere.
  const comeBack = () => document.visibilityState === "visible" && Promise.all([actions.look(), actions.refresh(true)]);
  for (const event of ["focus", "online", "visibilitychange"]) addEventListener(event, comeBack, { signal });
  await actions.look();
}
