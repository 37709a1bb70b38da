// The page's frame: its bar, its views, and the key where the API asks for one.

import { createApi } from "./api.js";
import { fill, h } from "./dom.js";
import { createStore } from "./store.js";
import { VIEWS } from "./views.js";

const store = createStore({ view: null, models: [], limits: {}, voices: null, problem: "" });
const api = createApi(sessionStorage, askForKey);
const bar = { start: h("div.row"), end: h("div.row") };
const root = h("div.view");
const app = { store, api, bar, storage: localStorage, refreshModels, place };
const links = VIEWS.map(({ name, title, href }) => h("a", { href, "data-view": name, onclick: follow }, title));
const problem = h("p.problem", { role: "alert" });
const brand = h("h1", {}, "umaserve");
const nav = h("nav", { id: "views", "aria-label": "Views" }, links);
/** On a phone there is room for the name of one. */
const chooser = h("button.quiet.views", { "aria-controls": "views", onclick: () => unfold(!nav.classList.contains("open")) });
const header = h("header", {}, bar.start, brand, chooser, nav, bar.end);

const key = h("input", { type: "password", id: "key", autocomplete: "off", required: true });
const ASKED = "This server asks for an API key. It stays in this tab, and is forgotten when that is closed.";
const REFUSED = "The server does not know this key. Look for a mistake, or ask who runs the server.";
const about = h("p.hint");
const asking = h("dialog", { "aria-labelledby": "key-title", oncancel: (event) => event.preventDefault() },
  h("form", { onsubmit: useKey },
    h("h2", { id: "key-title" }, "API key"), about, h("label", { for: "key" }, "Key"), key,
    h("button.primary", { type: "submit" }, "Use this key")));

const RETRY_MS = 5000;
let retry = 0;
let leaving = new AbortController();

async function show() {
  // A path of its own leaves the hash to the view, and so does a hash that names none: the chat's.
  const name = location.pathname.replaceAll("/", "") || location.hash.slice(1);
  const view = VIEWS.find((each) => each.name === name) ?? VIEWS[0];
  if (store.state.view === view.name) return;
  store.update((state) => (state.view = view.name));
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  for (const place of [bar.start, bar.end, root]) fill(place);
  const module = await view.load().catch(() => null);
  if (signal.aborted) return;
  if (module) await module.mount(root, { ...app, store: store.until(signal) }, signal);
  else {
    store.update((state) => Object.assign(state, { view: null, problem: "The server can't be reached." }));
    tryAgain();
  }
}

function unfold(open) {
  nav.classList.toggle("open", open);
  chooser.ariaExpanded = String(open);
}

/** Without loading the page again: what a view has begun goes on. */
function follow(event) {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  unfold(false);
  if (this.href === location.href) return;
  history.pushState(null, "", this.href);
  show();
}

/** Makes `href` the address of the view that is shown, and what its link leads to; `replaces` the one before it. */
function place(href, replaces) {
  const link = links.find((each) => each.dataset.view === store.state.view);
  link.href = href;
  if (link.href !== location.href) history[replaces ? "replaceState" : "pushState"](null, "", href);
}

/** What has failed, in a while: the server may be back. */
function tryAgain() {
  clearTimeout(retry);
  retry = setTimeout(() => Promise.all([show(), refreshModels()]), RETRY_MS);
}

async function refreshModels() {
  try {
    // The voice is the daemon's, and stays.
    const voiced = store.state.voices ? store.state : api.json("/v1/audio/voices");
    const [{ data: models, limits }, { voices }] = await Promise.all([api.json("/v1/models"), voiced]);
    store.update((state) => Object.assign(state, { models, limits, voices, problem: "" }));
  } catch (error) {
    if (error.status === 401) return;
    store.update((state) => (state.problem = error.message));
    tryAgain();
  }
}

function askForKey() {
  about.textContent = api.key ? REFUSED : ASKED;
  if (!asking.open) asking.showModal();
}

async function useKey() {
  asking.close();
  api.key = key.value.trim();
  key.value = "";
  dispatchEvent(new Event("newkey"));
  await refreshModels();
}

store.subscribe((state) => {
  for (const link of links) {
    if (link.dataset.view === state.view) {
      link.setAttribute("aria-current", "page");
      chooser.textContent = `${link.textContent} ▾`;
    } else link.removeAttribute("aria-current");
  }
  problem.textContent = state.problem;
});
document.body.replaceChildren(header, problem, root, asking);
unfold(false);
addEventListener("popstate", show);
await Promise.all([show(), refreshModels()]);
