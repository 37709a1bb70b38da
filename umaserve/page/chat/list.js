// The conversations that this browser and the server keep: to be found, opened, deleted, taken along and brought back.

import { h, icon, iconButton, menuButton, saveFile } from "../dom.js";
import { isServers } from "./places.js";

const THERE = "On the server";
const UNSAVED = "Not all of it is on the server yet";
const MAX_FILE_BYTES = 256 * 2 ** 20;

export function conversationList(store, actions) {
  const { state } = store;
  const find = () => actions.search(search.value);
  const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search conversations", oninput: find });
  const items = h("ul.conversations");
  const file = h("input", { type: "file", accept: ".json,application/json", hidden: true, onchange: () => read() });
  const begin = h("button.wide", { onclick: () => actions.begin() }, icon("add"), "New conversation");
  const save = h("button.quiet", { onclick: () => download(actions) }, icon("save"), "Export");
  const load = h("button.quiet", { onclick: () => file.click() }, icon("upload"), "Import");
  const close = iconButton("close", "Close the conversations", () => actions.toggle("list", false));
  const node = h("aside.list", { id: "conversations", "aria-label": "Conversations" },
    h("div.row.head", {}, h("h2", {}, "Conversations"), close), begin, search, items, h("div.row", {}, save, load, file));
  let shown = "";

  async function read() {
    const [chosen] = file.files;
    file.value = "";
    if (!chosen) return;
    if (chosen.size > MAX_FILE_BYTES) actions.tell("This file is larger than 256 MiB.");
    else await actions.imported(await chosen.text());
  }

  function entry({ id, title, isSaved }) {
    const current = id === state.conversation.id;
    const props = { dir: "auto", "aria-current": current && "true", title, onclick: () => actions.open(id) };
    const open = h("button.open", props, title);
    const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60);
    const isThere = isServers(id);
    const place = isThere ? { name: "back", label: "Keep in this browser only" } : { name: "server", label: "Keep on the server" };
    const moving = { ...place, act: () => actions.move(id), disabled: isRunning(id) };
    const more = menuButton(`More of “${title}”`, [
      { name: "edit", label: "Rename", act: () => rename(id, title, open) },
      { name: "save", label: "Save as Markdown", act: () => saveText(id, name) },
      ...(isThere || state.server.offered ? [moving] : []),
      { name: "remove", label: "Delete", act: () => actions.remove(id) },
    ]);
    const words = isSaved ? THERE : UNSAVED;
    const mark = isThere && h(isSaved ? "span.place" : "span.place.unsaved", { role: "img", "aria-label": words, title: words }, icon("server"));
    return h("li", {}, open, mark, more);
  }

  const isRunning = (id) => state.run?.conversation.id === id;

  async function saveText(id, name) {
    const text = await actions.markdown(id);
    if (text !== null) saveFile(new Blob([text], { type: "text/markdown" }), `${name}.md`);
  }

  /** In place of its title; Enter or leaving it keeps what was written, Escape does not. */
  function rename(id, title, open) {
    const field = h("input", { type: "text", value: title, "aria-label": "Title", maxLength: 200 });
    let wanted = true;
    const leave = () => {
      field.replaceWith(open);
      if (wanted && field.value !== title) actions.rename(id, field.value);
    };
    field.addEventListener("blur", leave, { once: true });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      wanted = event.key === "Enter";
      field.blur();
    });
    open.replaceWith(field);
    field.select();
  }

  store.subscribe(() => {
    node.classList.toggle("open", state.open.list);
    const today = new Date().setHours(0, 0, 0, 0);
    const listed = state.list.map((each) => ({ ...each, when: whenWords(each.changed, today) }));
    // Not with each save: a menu that is open stays so.
    const known = listed.map(({ id, title, when, isSaved }) => [id, title, when, isSaved, isRunning(id)]);
    const key = JSON.stringify([known, state.conversation.id, state.server.offered]);
    if (key === shown) return;
    shown = key;
    const begins = (each, i) => each.when !== listed[i - 1]?.when;
    const entries = listed.flatMap((each, i) => [...(begins(each, i) ? [h("li.when", {}, each.when)] : []), entry(each)]);
    if (entries.length === 0) entries.push(h("li.none", {}, state.query ? "Nothing found" : "None yet"));
    items.replaceChildren(...entries);
  });
  return node;
}

const DAY_MS = 86_400_000;

function whenWords(changed, today) {
  if (changed >= today) return "Today";
  if (changed >= today - DAY_MS) return "Yesterday";
  if (changed >= today - 6 * DAY_MS) return "This week";
  return new Date(changed).toLocaleDateString("en-GB", { month: "long", year: "numeric" });
}

async function download(actions) {
  const file = new Blob([await actions.exported()], { type: "application/json" });
  saveFile(file, `conversations-${new Date().toISOString().slice(0, 10)}.json`);
}
