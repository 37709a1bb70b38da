// The conversations that this browser keeps: to be found, opened, deleted, taken along and brought back.

import { h, icon, iconButton, saveFile } from "../dom.js";

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

  store.subscribe(() => {
    node.classList.toggle("open", state.open.list);
    const key = JSON.stringify([state.list, state.conversation.id]);
    if (key === shown) return;
    shown = key;
    const entries = state.list.map(({ id, title }) => {
      const current = id === state.conversation.id;
      const props = { dir: "auto", "aria-current": current && "true", onclick: () => actions.open(id) };
      const remove = () => confirm(`Delete “${title}”?`) && actions.remove(id);
      return h("li", {}, h("button.open", props, title), iconButton("remove", `Delete “${title}”`, remove));
    });
    if (entries.length === 0) entries.push(h("li.none", {}, state.query ? "Nothing found" : "None yet"));
    items.replaceChildren(...entries);
  });
  return node;
}

async function download(actions) {
  const file = new Blob([await actions.exported()], { type: "application/json" });
  saveFile(file, `conversations-${new Date().toISOString().slice(0, 10)}.json`);
}
