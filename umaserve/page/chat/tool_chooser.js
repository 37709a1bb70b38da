// Which tools the model may call in a conversation, by their servers; and the servers, which can be added.

import { visible } from "../answers/answer_text.js";
import { fill, h, iconButton, loadStyle, write } from "../dom.js";
import { nameOfServer } from "../tools/servers.js";

await loadStyle("/page/chat/tools.css");

const PURPOSE = "The model may call what is switched on here, in this conversation. Each call is shown, and runs when you say so.";
const HOW = { always: "Runs without asking.", never: "Never runs, as you said." };
let count = 0;

/** Shows them, until somebody closes that. */
export async function chooseTools(store, actions) {
  const servers = await actions.servers();
  const closing = new AbortController();
  const list = h("div.servers", {}, h("p.hint", { role: "status" }, "Asking the servers…"));
  const problem = h("p.problem", { role: "alert" });
  const address = h("input", { type: "url", id: "tool-server", autocomplete: "off", placeholder: "https://…/mcp" });
  const adding = h("form.adding", { onsubmit: add, novalidate: true },
    h("label", { for: "tool-server" }, "Add a server"), h("div.row", {}, address, h("button", { type: "submit" }, "Add")), problem);
  const close = h("button.primary", { onclick: () => dialog.close() }, "Close");
  // Escape is for the dialog alone.
  const own = (event) => event.stopPropagation();
  const dialog = h("dialog.tool-chooser", { "aria-labelledby": "tools-title", onkeydown: own, onclose: leave },
    h("h2", { id: "tools-title" }, "Tools"), h("p.hint", {}, PURPOSE), list, adding, h("div.row.end", {}, close));

  function leave() {
    closing.abort();
    dialog.remove();
  }

  async function add() {
    write(problem, "");
    try {
      await servers.add(address.value);
      address.value = "";
      await showServers();
    } catch (error) {
      write(problem, error.message);
    }
  }

  async function showServers() {
    try {
      const all = await servers.all();
      fill(list, all.map((server) => serverView(server, servers, store, actions, closing.signal, showServers)));
    } catch (error) {
      fill(list, h("p.hint", {}, `The list of servers can't be read: ${error.message}`));
    }
  }

  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  showServers();
}

function serverView({ address, isOwn }, servers, store, actions, signal, showServers) {
  const state = h("p.hint", { role: "status" }, "Asking for its tools…");
  const [tools, all] = [h("ul.tools-list"), h("span.row")];
  const forget = isOwn && iconButton("remove", `Remove ${nameOfServer(address)}`, () => {
    servers.remove(address);
    actions.forgetServer(address);
    showServers();
  });
  const head = h("div.row", {}, h("h3", { title: address }, nameOfServer(address)), all, forget);

  servers.tools(address, true).then((found) => {
    if (signal.aborted) return;
    write(state, found.length > 0 ? "" : "It has no tools.");
    state.hidden = found.length > 0;
    const set = (how) => found.forEach(({ name }) => actions.tool(address, name, how));
    const both = [h("button.quiet", { onclick: () => set("ask") }, "All"), h("button.quiet", { onclick: () => set(null) }, "None")];
    fill(all, found.length > 1 && both);
    fill(tools, found.map((tool) => toolView(address, tool, store, actions, signal)));
  }).catch((error) => write(state, visible(`Its tools can't be had. ${error.message}`)));
  return h("section", { "aria-label": nameOfServer(address) }, head, state, tools);
}

function toolView(address, { name, description = "" }, store, actions, signal) {
  const id = `tool-${(count += 1)}`;
  const box = h("input", { type: "checkbox", "aria-describedby": id, onchange: () => actions.tool(address, name, box.checked ? "ask" : null) });
  const [about, how] = [visible(String(description)), h("span")];
  store.subscribe(({ conversation }) => {
    const set = conversation.tools?.[address]?.[name];
    box.checked = set !== undefined && set !== "never";
    write(how, HOW[set] ?? "");
  }, signal);
  return h("li", {}, h("label.switch", {}, box, h("span", { dir: "auto" }, visible(name))), h("p.hint", { id, dir: "auto" }, how, about && ` ${about}`));
}
