// The turns of the conversation that is shown. One reads in peace: the page follows the text only at its end.

import { answerView } from "../answers/answer_view.js";
import { branches, path } from "../answers/conversation.js";
import { h, icon, iconButton, menuButton, messageField, refill, shownBy } from "../dom.js";

const NEAR_END_PX = 48;
const SLOW_MS = 25;

export function turnsView(store, actions, speech) {
  const { state } = store;
  const list = h("ol.turns");
  const welcome = h("div.welcome", {}, h("h2", {}, "What shall we talk about?"));
  const toEnd = h("button.to-end", { hidden: true, onclick: () => goToEnd() }, icon("down"), "New text");
  const scroller = h("div.scroller", { role: "region", "aria-label": "Conversation", tabIndex: 0 }, welcome, list);
  const view = h("section.conversation", {}, scroller, toEnd);
  const showTurns = shownBy((turn) => turn, viewOf, list);
  let following = true;
  let shown = null;
  let later = 0;
  let choosing = null;
  let AnswerText = null;
  let loading = null;

  const answerOf = (element) => state.conversation.turns[element.closest("[data-turn]").dataset.turn];
  scroller.addEventListener("scroll", () => {
    following = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
    if (following) toEnd.hidden = true;
  });

  function viewOf(turn) {
    if (turn.role === "user") return questionView(turn, store, actions);
    return answerTurn(turn, store, actions, speech, drawer);
  }

  function goToEnd() {
    scroller.scrollTop = scroller.scrollHeight;
    toEnd.hidden = true;
  }

  function render() {
    if (shown !== state.conversation) following = true;
    shown = state.conversation;
    const before = scroller.scrollHeight;
    const begun = performance.now();
    const turns = path(shown);
    showTurns(turns);
    welcome.hidden = turns.length > 0;
    if (following) goToEnd();
    else if (scroller.scrollHeight > before && state.run) toEnd.hidden = false;
    return performance.now() - begun;
  }

  /** What draws an answer, which is loaded while the first one is awaited; until then null. */
  function drawer(node) {
    loading ??= import("../answers/answer_text.js")
      .then((module) => store.update(() => ({ AnswerText } = module)))
      .catch(() => (loading = null));
    return AnswerText && new AnswerText(node);
  }

  async function chooseTokens() {
    const { tokenChooser } = await import("./tokens.js");
    tokenChooser(view, answerOf, actions.branchAt);
  }

  store.subscribe(() => {
    if (state.probabilities) choosing ??= chooseTokens();
    if (later) return;
    const took = render();
    // A huge block takes its time: then it is drawn less often, so that the page stays quick.
    if (took > SLOW_MS) later = setTimeout(() => ((later = 0), store.update(() => {})), 4 * took);
  });
  return view;
}

function questionView(turn, { state }, actions) {
  const text = h("div.text", { dir: "auto" }, turn.text);
  const media = turn.media && h("div.media");
  const buttons = h("div.actions");
  const head = h("h2.hidden", {}, "You");
  const node = h("li.turn.user");
  let editor = null;
  let version = "";
  if (media) import("./attach_shown.js").then(({ showMedia }) => showMedia(media, turn.media, actions.content));

  function show() {
    const editing = state.editing === turn.id;
    if (!editing) editor = null;
    const begins = editing && !editor;
    if (begins) editor = turnEditor("Question", "Send", turn, actions.resend, actions);
    refill(node, [head, media, editing ? editor : [turn.text && text, buttons]]);
    if (begins) editor.querySelector("textarea").focus();
    const busy = state.run !== null;
    const key = [busy, branches(state.conversation, turn).length, state.conversation.chosen[turn.id]].join();
    if (key === version) return;
    version = key;
    refill(buttons, [
      walker(turn, state, actions),
      iconButton("edit", "Edit this question, as a branch", () => actions.edit(turn), { disabled: busy }),
      iconButton("copy", "Copy the question", () => actions.copy(turn.text)),
      iconButton("remove", "Delete from here on", () => actions.removeTurn(turn), { disabled: busy }),
    ]);
  }

  return { node, show };
}

function turnEditor(label, does, turn, keep, actions) {
  const send = () => keep(turn, area.value);
  const leave = () => actions.edit(null);
  const area = messageField(send, { value: turn.text, rows: 3, "aria-label": label });
  const cancel = h("button", { onclick: leave }, "Cancel");
  const ask = h("button.primary", { onclick: send }, does);
  const onkeydown = (event) => event.key === "Escape" && leave();
  return h("div.editor", { onkeydown }, area, h("div.row", {}, cancel, ask));
}

function answerTurn(turn, { state }, actions, speech, drawer) {
  const node = h("li.turn.answer", { "data-turn": turn.id }, h("h2.hidden", {}, "Answer"));
  const view = answerView(node);
  const buttons = h("div.actions");
  node.append(buttons);
  let drawn = null;
  let calls = null;
  let editor = null;
  let version = "";

  async function showCalls() {
    if (calls === null) {
      calls = import("./calls_view.js").then(({ callsView }) => callsView(actions));
      view.text.after((await calls).node);
    }
    (await calls).show(turn.calls, state.run?.answer === turn);
  }

  function showEditor() {
    const editing = state.editing === turn.id;
    if (editing === (editor !== null)) return;
    editor?.remove();
    editor = editing ? turnEditor("Answer", "Keep as a branch", turn, actions.rewrite, actions) : null;
    view.text.hidden = editing;
    if (!editing) return;
    view.text.after(editor);
    editor.querySelector("textarea").focus();
  }

  function show() {
    showEditor();
    const { probabilities, voiced } = state;
    const { text, thoughts, marks, stats, end, error } = turn;
    const run = state.run?.answer === turn ? state.run : null;
    drawn ??= drawer(view.text);
    const written = [text.length, thoughts.length, marks.length, stats?.tokens, end, error, run?.phase, run?.note];
    const called = (turn.calls ?? []).map(({ state: how }) => how);
    const beside = [...called, !state.run, voiced, state.spoken === turn, branches(state.conversation, turn).length];
    const key = [drawn !== null, probabilities, ...written, ...beside].join();
    if (key === version) return;
    version = key;
    view.show(turn, run);
    drawn?.draw(turn, probabilities);
    if (turn.calls) showCalls();
    tokensBy(view.text, probabilities);
    buttons.hidden = run !== null;
    if (run === null) refill(buttons, answerButtons(turn, state, actions, speech));
  }

  return { node, show };
}

const BY_TOKENS = {
  ...{ "data-tokens": "", tabindex: "0", role: "group" },
  "aria-label": "Answer, token by token: the arrow keys walk, Enter shows the alternatives",
};

function tokensBy(text, shaded) {
  for (const [name, value] of Object.entries(BY_TOKENS)) {
    if (shaded) text.setAttribute(name, value);
    else text.removeAttribute(name);
  }
}

function answerButtons(turn, state, actions, speech) {
  const disabled = state.run !== null;
  return [
    ...walker(turn, state, actions),
    iconButton("copy", "Copy the answer", () => actions.copy(turn.text)),
    iconButton("redo", "Answer again", () => actions.regenerate(turn), { disabled }),
    state.spoken === turn && iconButton("stop", "Stop reading", speech.stop),
    menuButton("More", [
      { name: "go_on", label: "Continue this answer", act: () => actions.goOn(turn), disabled },
      { name: "edit", label: "Edit the answer", act: () => actions.edit(turn), disabled },
      ...speech.items(turn),
      { name: "remove", label: "Delete from here on", act: () => actions.removeTurn(turn), disabled },
    ]),
  ];
}

/** Walks through the branches that a turn is one of. */
function walker(turn, state, actions) {
  const all = branches(state.conversation, turn);
  if (all.length < 2) return [];
  const at = all.indexOf(turn);
  const busy = state.run !== null;
  return [
    iconButton("back", "Branch before", () => actions.walk(turn, -1), { disabled: busy || at === 0 }),
    h("span.branch", {}, `${at + 1} / ${all.length}`),
    iconButton("next", "Branch after", () => actions.walk(turn, 1), { disabled: busy || at === all.length - 1 }),
  ];
}
