// One question, answered side by side: by other settings or models, or beside an answer that was kept from before.

import { fill, h, icon, loadStyle, messageField, refill } from "../dom.js";
import { createStore } from "../store.js";
import { defaults } from "../answers/settings.js";
import { column } from "./column.js";

await loadStyle("/page/compare/style.css");

const PURPOSE =
  "One question, answered by each column at the same time: by another model, other settings or another system prompt. " +
  "Open a column's line to change them, and keep an answer to hold the next ones against it.";
const LEAST = 2;
const MOST = 6;

/** What outlives the view: answers are written to their ends, and are there when one comes back. */
let begun = null;

export function mount(root, app, signal) {
  begun ??= compare(app);
  const { node, stopAll, show } = begun;
  root.replaceChildren(node);
  app.store.subscribe(show);
  addEventListener("keydown", (event) => event.key === "Escape" && stopAll(), { signal });
  node.querySelector("textarea").focus();
}

function compare(app) {
  const store = createStore({ columns: [] });
  const { state } = store;
  const named = { "aria-label": "Question for all", placeholder: "One question for all columns" };
  const prompt = messageField(askAll, { rows: 2, ...named });
  const ask = h("button.primary", { type: "submit" }, icon("send"), "Ask all");
  const stop = h("button", { onclick: stopAll }, icon("stop"), "Stop all");
  const add = h("button", { onclick: () => addColumn() }, icon("add"), "Add a column");
  const buttons = h("div.row");
  const columns = h("div.columns");
  const form = h("form.asking", { onsubmit: askAll }, prompt, buttons);
  const node = h("main.compare", {}, form, h("p.hint.purpose", {}, PURPOSE), columns);

  /** A new column is like the last one. */
  function addColumn(changes = {}) {
    const { model = "", system = "", settings = defaults() } = state.columns[state.columns.length - 1]?.state ?? {};
    const added = column(app, store, { model, system, settings: { ...settings, ...changes } }, () => {
      added.stop();
      store.update(() => state.columns.splice(state.columns.indexOf(added), 1));
    });
    store.update(() => state.columns.push(added));
  }

  const running = () => state.columns.some((each) => each.state.run !== null);

  function askAll() {
    const question = prompt.value.trim();
    if (question && !running()) for (const each of state.columns) each.ask(question);
  }

  function stopAll() {
    for (const each of state.columns) each.stop();
  }

  store.subscribe(() => {
    fill(columns, state.columns.map(({ node }) => node));
    refill(buttons, [running() ? stop : ask, add]);
    add.disabled = state.columns.length >= MOST;
    state.columns.forEach((each, i) => each.show(i + 1, state.columns.length > LEAST));
  });
  addColumn();
  addColumn({ temperature: 1.4 });
  return { node, stopAll, show: () => store.update(() => {}) };
}
