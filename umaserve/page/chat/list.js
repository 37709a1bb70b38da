// The conversations that this browser keeps: to be found, opened, deleted, taken along and brought back.

import { h, icon, iconButton, menuButton, saveFile } from "../dom.js";

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

  function entry({ id, title }) {
    const current = id === state.conversation.id;
    const props = { dir: "auto", "aria-current": current && "true", title, onclick: () => actions.open(id) };
    const open = h("button.open", props, title);
    const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60);
    const more = menuButton(`More of “${title}”`, [
      { name: "edit", label: "Rename", act: () => rename(id, title, open) },
      { name: "save", label: "Save as Markdown", act: async () => saveFile(new Blob([await actions.markdown(id)], { type: "text/markdown" }), `${name}.md`) },
      { name: "remove", label: "Delete", act: () => actions.remove(id) },
    ]);
    return h("li", {}, open, more);
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
    const key = JSON.stringify([listed.map(({ id, title, when }) => [id, title, when]), state.conversation.id]);
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
