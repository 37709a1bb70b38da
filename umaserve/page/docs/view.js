// The API, as its OpenAPI document describes it: paths by what they are for, each with a form to try it.

import { parseBlocks } from "../markdown/blocks.js";
import { renderBlock } from "../markdown/render.js";
import { fill, h, loadStyle } from "../dom.js";
import { folded, schemaReader } from "./schema.js";
import { tryIt } from "./try_it.js";

await loadStyle("/page/docs/style.css");

export async function mount(root, app, signal) {
  const told = h("p.hint", { role: "status" }, "Reading /openapi.json…");
  const main = h("main.docs", {}, told);
  const change = h("button", { onclick: () => ((app.api.key = ""), app.api.refused()) }, "Change the key");
  let asked = false;
  root.replaceChildren(main);
  app.bar.end.replaceChildren(change);

  async function load() {
    change.hidden = !app.api.key;
    if (asked) return;
    asked = true;
    try {
      fill(main, overview(await app.api.json("/openapi.json"), app));
      show();
    } catch (error) {
      told.textContent = error.message;
      asked = error.status !== 401;
    }
  }

  /** Opens the operation that the address names. */
  function show() {
    const wanted = document.getElementById(location.hash.slice(1));
    if (!wanted?.matches(".operation")) return;
    wanted.open = true;
    wanted.scrollIntoView();
  }

  // With a key that is new, the document is asked for again.
  addEventListener("newkey", load, { signal });
  addEventListener("hashchange", show, { signal });
  load();
}

function overview(description, app) {
  const reader = schemaReader(description, prose);
  const all = Object.entries(description.paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) => ({ ...operation, method, path, node: operationNode(method, path, operation, reader, app) })));
  const sections = description.tags.map(({ name, description: about }) => {
    const operations = all.filter(({ tags }) => tags.includes(name));
    return { operations, node: h("section", { "aria-label": name }, h("h2", {}, name), about && prose(about), operations.map(({ node }) => node)) };
  });
  const none = h("p.hint", { role: "status" });
  const search = h("input", { type: "search", "aria-label": "Find a path", placeholder: "Find a path", oninput: find });

  function find() {
    const wanted = search.value.trim().toLowerCase();
    for (const { node, path, summary } of all) node.hidden = !`${path} ${summary}`.toLowerCase().includes(wanted);
    for (const { node, operations } of sections) node.hidden = operations.every((each) => each.node.hidden);
    none.textContent = all.every(({ node }) => node.hidden) ? "No path is like this." : "";
  }

  const { title, version, description: about } = description.info;
  return [h("h2.title", {}, `The API of ${title} ${version}`), prose(about), search, none, sections.map(({ node }) => node)];
}

function operationNode(method, path, operation, reader, app) {
  const { follow, entry } = reader;
  const { operationId, summary, description, parameters = [], requestBody, responses } = operation;
  const socket = responses["101"];
  const verb = h("span.method", { "data-method": method }, socket ? "WS" : method.toUpperCase());

  function content() {
    const known = parameters.map(follow);
    const asked = requestBody && Object.entries(follow(requestBody).content);
    return [
      description && prose(description),
      known.length > 0 && [h("h3", {}, "Parameters"), h("ul.fields", {}, known.map((each) => entry(each.name, each.schema, each.required)))],
      asked && [h("h3", {}, "Request"), asked.map((each) => body(each, reader))],
      socket && h("h3", {}, "Messages"),
      socket && ["client", "server"].map((side) => folded(`What the ${side} sends`, () => reader.tree(socket[`x-${side}-message`]))),
      h("h3", {}, "Responses"),
      Object.entries(responses).map(([status, each]) => response(status, follow(each), reader)),
      h("h3", {}, "Try it"),
      tryIt({ method, path, parameters: known, body: asked?.[0], message: socket?.["x-client-message"] }, reader, app),
    ];
  }

  const node = folded([verb, h("code", {}, path), h("span", {}, summary)], content, { class: "operation", id: operationId });
  node.addEventListener("toggle", () => node.open && history.replaceState(null, "", `#${operationId}`));
  return node;
}

function response(status, { description, content = {} }, reader) {
  return h("div.response", {}, h("p", {}, h("code", {}, status)), prose(description), Object.entries(content).map((each) => body(each, reader)));
}

function body([type, { schema = {}, "x-event": event = schema }], reader) {
  const head = [h("code", {}, type), " ", h("span.type", {}, reader.type(event))];
  return reader.opens(event) ? folded(head, () => reader.tree(event)) : h("p", {}, head);
}

function prose(text) {
  return h("div.markdown", {}, parseBlocks(text, 0).map((block) => renderBlock(block, (piece) => piece)));
}
