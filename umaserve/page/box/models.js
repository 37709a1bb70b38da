// The models: their states, their memory, and buttons that load and unload them.

import { h, shownBy } from "../dom.js";
import { bytes } from "../words.js";
import { modelWords } from "./words.js";

/** `move(path, name)` asks for a model to be loaded or unloaded; returns a promise. */
export function modelList(move) {
  const list = h("ul.items.models");
  const show = shownBy(({ name }) => name, ({ name }) => item(name, move), list);
  return {
    node: h("section", { "aria-label": "Models" }, h("h2", {}, "Models"), list),
    show: ({ models }) => show(models),
  };
}

function item(name, move) {
  const about = h("span.about");
  const bar = h("progress", { max: 1, "aria-label": `Loading ${name}` });
  const button = h("button", { onclick: press });
  let path = "";

  async function press() {
    button.disabled = true;
    await move(path, name);
    button.disabled = false;
  }

  return {
    node: h("li", { "data-model": name }, h("span.who", {}, h("strong", {}, name), about, bar), button),
    show(model) {
      const loaded = model.state === "loaded" || model.state === "unloading";
      path = loaded ? "/models/unload" : "/models/load";
      about.textContent = `${modelWords(model)}, ${loaded ? "takes" : "would take"} ${bytes(model.needed_bytes)}`;
      bar.hidden = model.state !== "loading";
      bar.value = model.progress;
      button.hidden = model.state === "loading" || model.state === "unloading";
      button.textContent = loaded ? "Unload" : "Load";
      button.setAttribute("aria-label", `${button.textContent} ${name}`);
    },
  };
}
