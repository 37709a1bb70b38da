// The settings of the conversation: a preset, the system prompt, sliders that act while an answer is written.

import { h, iconButton } from "../dom.js";
import { SETTINGS, presets } from "../answers/settings.js";

export function settingsPanel(store, actions, storage) {
  const { state } = store;
  const preset = h("select", { id: "preset", onchange: () => choose() });
  const tell = () => actions.system(system.value);
  const system = h("textarea", { id: "system", rows: 4, dir: "auto", placeholder: "None", oninput: tell });
  const name = h("input", { type: "text", maxLength: 40, placeholder: "Name", "aria-label": "Name of a new preset" });
  const keeping = h("form.row", { onsubmit: keepPreset }, name, h("button", { type: "submit" }, "Keep"));
  const turnOn = () => actions.probabilities(probabilities.checked);
  const probabilities = h("input", { type: "checkbox", id: "probabilities", onchange: turnOn });
  const own = h("button.quiet", { onclick: () => setOwn(true) }, "Use for new conversations");
  const forget = h("button.quiet", { onclick: () => setOwn(false), hidden: !actions.hasOwnDefaults() }, "Forget");
  const sliders = SETTINGS.map((setting) => slider(setting, actions));

  function choose() {
    actions.preset(preset.value);
    preset.value = "";
  }

  function listPresets() {
    const all = presets(storage).map((each) => h("option", { value: each.name }, each.name));
    preset.replaceChildren(h("option", { value: "" }, "Choose one…"), ...all);
  }

  function keepPreset() {
    if (!name.value.trim()) return;
    actions.keepPreset(name.value.trim());
    name.value = "";
    listPresets();
  }

  function setOwn(wanted) {
    actions.defaults(wanted);
    forget.hidden = !wanted;
    own.focus();
  }

  const shade = h("label.switch", {}, probabilities, h("span", {}, "Token probabilities"));
  const titles = h("input", { type: "checkbox", checked: actions.entitles(), onchange: () => actions.entitle(titles.checked) });
  const entitle = h("label.switch", {}, titles, h("span", {}, "Titles by the model, when it is idle"));
  const there = h("input", { type: "checkbox", checked: actions.beginsThere(), onchange: () => actions.beginThere(there.checked) });
  const until = h("p.hint");
  const place = h("div", { hidden: true }, h("label.switch", {}, there, h("span", {}, "Keep new conversations on the server")), until);
  const close = iconButton("close", "Close the settings", () => actions.toggle("settings", false));
  const node = h("aside.panel", { id: "settings", "aria-label": "Settings" },
    h("div.row.head", {}, h("h2", {}, "Settings"), close),
    h("label", { for: "preset" }, "Preset"), preset, keeping,
    h("label", { for: "system" }, "System prompt"), system,
    h("div.row", { role: "group", "aria-label": "My defaults" }, own, forget),
    h("p.hint", {}, "Sliders act at once, also on an answer that is being written."),
    sliders.filter(({ usual }) => usual).map(({ node: each }) => each),
    fold("More settings", choices(store, actions), sliders.filter(({ usual }) => !usual).map(({ node: each }) => each)),
    shade, h("p.hint", {}, SHADES), entitle, place, fold("Keys", h("p.hint", {}, KEYS)));

  listPresets();
  store.subscribe(() => {
    if (system.value !== state.conversation.system) system.value = state.conversation.system;
    probabilities.checked = state.probabilities;
    place.hidden = !state.server.offered;
    until.textContent = thereWords(state.server.maxAgeS);
    for (const each of sliders) each.show(state.conversation.settings);
    node.classList.toggle("open", state.open.settings);
  });
  return node;
}

/** What is no range. Where nothing is set, it is left to the server. */
function choices(store, actions) {
  const whole = (text) => (/^\d+$/.test(text.trim()) ? Number(text) : null);
  const lines = (text) => (text.trim() ? text.split("\n").filter(Boolean) : null);
  const think = { "": null, on: true, off: false };
  const number = { type: "text", inputMode: "numeric", autocomplete: "off" };
  const fields = [
    ["seed", "Seed", h("input", { ...number, placeholder: "Another one each time" }), whole, "the same seed and settings write the same again"],
    ["stop", "Stop at", h("textarea", { rows: 2, placeholder: "Nowhere" }), lines, "one text a line, at which an answer ends"],
    ["enable_thinking", "Thoughts", h("select", {}, ["", "on", "off"].map((value) => h("option", { value }, value || "As the model does"))), (text) => think[text], "of models that can do with and without"],
    ["reasoning_budget", "Length of thoughts", h("input", { ...number, placeholder: "No limit" }), whole, "at most so many tokens; then it has to answer"],
  ];
  return fields.map(([name, title, field, read, hint]) => {
    const shown = (value) => (Array.isArray(value) ? value.join("\n") : { true: "on", false: "off" }[value] ?? String(value ?? ""));
    Object.assign(field, { id: `set-${name}` });
    field.setAttribute("aria-describedby", `hint-${name}`);
    field.addEventListener("change", () => actions.set(name, read(field.value)));
    store.subscribe(({ conversation }) => {
      const wanted = shown(conversation.settings[name]);
      if (field !== document.activeElement && field.value !== wanted) field.value = wanted;
    });
    return h("div.choice", {}, h("label", { for: field.id }, title), field, h("p.hint", { id: `hint-${name}` }, hint));
  });
}

function thereWords(maxAgeS) {
  const days = Math.round(maxAgeS / 86_400);
  const old = maxAgeS === null ? "" : `, and what has not changed for ${days > 1 ? `${days} days` : "a day"}`;
  return `All browsers with your key have them. The server deletes the oldest where room is short${old}.`;
}

function fold(title, ...inside) {
  return h("details.fold", {}, h("summary", {}, title), inside);
}

/** What is changed most often is not folded. */
const USUAL = ["temperature", "max_tokens"];
const SHADES =
  "Shades what was unlikely. Click a token to see what else could have stood there, and go on from that.";
const KEYS =
  "Keys: Enter sends, Shift+Enter breaks the line, Alt+P pauses and goes on, Escape stops, " +
  "Alt+N begins a conversation, Alt+L and Alt+S open the drawers.";

function slider({ name, title, least, most, step, hint }, actions) {
  const value = h("output", { for: `set-${name}` });
  const range = { type: "range", id: `set-${name}`, min: String(least), max: String(most), step: String(step) };
  const set = () => actions.set(name, Number(input.value));
  const input = h("input", { ...range, "aria-describedby": `hint-${name}`, oninput: set });
  const head = h("div.row", {}, h("label", { for: `set-${name}` }, title), value);
  return {
    usual: USUAL.includes(name),
    node: h("div.slider", {}, head, input, h("p.hint", { id: `hint-${name}` }, hint)),
    show(settings) {
      const wanted = String(settings[name]);
      if (input.value !== wanted) input.value = wanted;
      value.textContent = wanted;
    },
  };
}
