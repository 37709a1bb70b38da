// Which model answers, and what may be said of each.

import { h } from "../dom.js";
import { bytes, shortName } from "../words.js";

export function modelPicker(app, store, actions) {
  const choose = () => actions.model(select.value);
  const select = h("select.model", { "aria-label": "Model", onfocus: () => app.refreshModels(), onchange: choose });
  let shown = "";

  function render() {
    const { models } = app.store.state;
    const chosen = store.state.conversation.model || models[0]?.id || "";
    const key = JSON.stringify([models, chosen]);
    if (key === shown) return;
    shown = key;
    const names = models.map(({ id }) => id);
    const option = (model) => h("option", { value: model.id, title: model.id }, `${shortName(model.id, names)}${stateWords(model)}`);
    select.replaceChildren(...models.map(option));
    select.value = select.title = chosen;
    select.disabled = models.length < 2;
  }

  app.store.subscribe(render);
  store.subscribe(render);
  return select;
}

function stateWords({ status: { value, failed, progress = 0 }, needed, available }) {
  if (needed > available) return ` (doesn't fit: needs ${bytes(needed)}, at most ${bytes(available)} can be had)`;
  if (failed) return " (could not be loaded)";
  if (value === "loading") return ` (loading, ${Math.round(100 * progress)}%)`;
  return value === "loaded" ? "" : " (not loaded)";
}
