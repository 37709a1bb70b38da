// Which model answers: a picker where there are several.

import { h } from "../dom.js";

export function modelPicker(app, store, actions) {
  const { state } = store;
  const single = h("span.model");
  const select = h("select", { "aria-label": "Model", onfocus: () => app.refreshModels(), onchange: () => actions.model(select.value) });
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
    select.replaceChildren(...models.map((model) => h("option", { value: model.id }, `${model.id}${stateWords(model.status)}`)));
    select.value = chosen;
  }

  app.store.subscribe(render);
  store.subscribe(render);
  return node;
}

function stateWords({ value, failed } = {}) {
  if (failed) return " (could not be loaded)";
  return value === "loaded" ? "" : value === "loading" ? " (loading…)" : " (not loaded)";
}
