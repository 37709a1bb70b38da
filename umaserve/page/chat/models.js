// Which model answers: a picker where there are several.

import { h } from "../dom.js";
import { bytes } from "../words.js";

export function modelPicker(app, store, actions) {
  const { state } = store;
  const single = h("span.model");
  const choose = () => actions.model(select.value);
  const select = h("select", { "aria-label": "Model", onfocus: () => app.refreshModels(), onchange: choose });
  const node = h("div.picker", {}, single, select);
  let shown = "";

  function render() {
    const { models } = app.store.state;
    const chosen = state.conversation.model || models[0]?.id || "";
    const key = JSON.stringify([models, chosen]);
    if (key === shown) return;
    shown = key;
    single.hidden = models.length > 1;
    select.hidden = models.length < 2;
    single.textContent = models.length === 1 ? models[0].id : "";
    const option = (model) => h("option", { value: model.id }, `${model.id}${stateWords(model)}`);
    select.replaceChildren(...models.map(option));
    select.value = chosen;
  }

  app.store.subscribe(render);
  store.subscribe(render);
  return node;
}

function stateWords({ status: { value, failed, progress = 0 }, needed, available }) {
  if (needed > available) return ` (doesn't fit: needs ${bytes(needed)}, at most ${bytes(available)} can be had)`;
  if (failed) return " (could not be loaded)";
  if (value === "loading") return ` (loading, ${Math.round(100 * progress)}%)`;
  return value === "loaded" ? "" : " (not loaded)";
}
