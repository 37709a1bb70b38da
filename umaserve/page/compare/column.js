// A column: its model and settings, and the answer under them.

import { h, iconButton, write } from "../dom.js";
import { AnswerText } from "../answers/answer_text.js";
import { answerView } from "../answers/answer_view.js";
import { addTurn, newConversation, ROOT } from "../answers/conversation.js";
import { runAnswer } from "../answers/running.js";
import { asAsked, SETTINGS } from "../answers/settings.js";
import { shortName } from "../words.js";

/** `about` is {model, system, settings}: these change as one chooses, and a running answer with them. */
export function column(app, store, about, remove) {
  const state = { ...about, kept: false, run: null, answer: null };
  let generation = null;
  let drawn = null;
  let listed = null;

  const model = h("select", { onchange: () => store.update(() => (state.model = model.value)) });
  const picker = h("label.whole", {}, "Model", model);
  const system = h("textarea", { rows: 2, dir: "auto", value: state.system, oninput: () => (state.system = system.value) });
  const numbers = SETTINGS.map(({ name, title, least, most, step }) => {
    const range = { min: String(least), max: String(most), step: String(step) };
    const input = h("input", { type: "number", ...range, value: String(state.settings[name]), onchange: set });
    /** What stands there afterwards is what holds. */
    function set() {
      const wanted = Math.min(most, Math.max(least, step < 1 ? input.valueAsNumber : Math.round(input.valueAsNumber)));
      if (!Number.isNaN(wanted)) change(name, wanted);
      input.value = String(state.settings[name]);
    }
    return h("label", {}, title, input);
  });
  const title = h("h2");
  const keep = h("button.quiet", { onclick: () => store.update(() => (state.kept = !state.kept)) }, "Keep this answer");
  const close = iconButton("close", "Remove this column", remove);
  const summary = h("summary");
  const settings = h("details.setup", {}, summary, h("div.numbers", {}, picker, numbers, h("label.whole", {}, "System prompt", system)));
  const node = h("section.column.answer", {}, h("div.row", {}, title, keep, close), settings);
  const view = answerView(node);

  function change(name, value) {
    generation?.modify(asAsked({ [name]: value }).parameters);
    store.update(() => (state.settings[name] = value));
  }

  /** Asks, unless the answer from before is to stay. */
  function ask(question) {
    if (state.kept) return;
    const conversation = newConversation(state.model, state.system, { ...state.settings });
    const asked = addTurn(conversation, ROOT, "user", { text: question });
    const answer = addTurn(conversation, asked.id, "assistant", { thoughts: "", tokens: [], marks: [] });
    view.text.replaceChildren();
    drawn = new AnswerText(view.text);
    store.update(() => Object.assign(state, { answer, run: { phase: "waiting", note: "" } }));
    generation = runAnswer({
      ...{ api: app.api, conversation, answer, settings: conversation.settings, probabilities: false },
      change: (f) => store.update(() => state.run && f(state.run)),
      ended: () => {
        generation = null;
        store.update(() => (state.run = null));
      },
    });
  }

  function listModels(models) {
    if (models === listed) return;
    listed = models;
    model.replaceChildren(...models.map(({ id }, _, all) => h("option", { value: id, title: id }, shortName(id, all.map((one) => one.id)))));
    model.value = state.model || models[0]?.id || "";
    picker.hidden = models.length < 2;
  }

  function show(number, removable) {
    const { answer, run, kept } = state;
    listModels(app.store.state.models);
    node.setAttribute("aria-label", `Column ${number}`);
    close.hidden = !removable;
    keep.hidden = run !== null || answer === null;
    keep.setAttribute("aria-pressed", String(kept));
    write(title, `Column ${number}`);
    write(summary, summaryOf(kept ? answer : { settings: state.settings, model: model.value }, !picker.hidden));
    if (answer === null) return;
    drawn.draw(answer, false);
    view.show(answer, run);
  }

  return { node, state, ask, show, stop: () => generation?.stop() };
}

/** What is worth knowing at a glance: the model, where there are several, and the settings that are not the usual ones. */
function summaryOf({ settings, model }, several) {
  const others = SETTINGS.filter(({ name, first }) => name === "temperature" || settings[name] !== first);
  return [several && model, ...others.map(({ name, title }) => `${title} ${settings[name]}`)].filter(Boolean).join(" · ");
}
