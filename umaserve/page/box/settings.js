// The settings in effect, read when they are unfolded.

import { h } from "../dom.js";

export function settingsFold(api) {
  const body = h("div");
  const fold = h("details.settings", { ontoggle: () => fold.open && read() }, h("summary", {}, h("h2", {}, "Settings in effect")), body);

  async function read() {
    body.textContent = "Reading…";
    try {
      const { settings } = await api.json("/api/settings");
      body.replaceChildren(
        h("p.hint", {}, "Those that somebody has set are bold. Secrets are not shown."),
        h("dl", {}, settings.map(item)));
    } catch (error) {
      body.textContent = error.message;
    }
  }

  return fold;
}

function item({ name, value, default: unset, about }) {
  const shown = h("code", {}, value);
  return h("div", {}, h("dt", {}, value === unset ? name : h("strong", {}, name)), h("dd", {}, shown, h("p.hint", {}, about)));
}
