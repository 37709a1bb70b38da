// The turns of the conversation that is shown. One reads in peace: the page follows the text only at its end.

import { fill, h, icon, iconButton, refill } from "../dom.js";
import { branches, path } from "../answers/conversation.js";
import { figuresOf } from "../words.js";

const NEAR_END_PX = 48;
const SLOW_MS = 25;

export function turnsView(store, actions, speech) {
  const { state } = store;
  const list = h("ol.turns");
  const welcome = h("div.welcome", {}, h("h2", {}, "What shall we talk about?"), h("p", {}, WELCOME));
  const toEnd = h("button.to-end", { type: "button", hidden: true, onclick: () => goToEnd() }, icon("down"), "New text");
  const scroller = h("div.scroller", { role: "region", "aria-label": "Conversation", tabIndex: 0 }, welcome, list);
  const view = h("section.conversation", {}, scroller, toEnd);
  let views = new Map();
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
  list.addEventListener("click", copyCode);

  function goToEnd() {
    scroller.scrollTop = scroller.scrollHeight;
    toEnd.hidden = true;
  }

  function render() {
    const { conversation } = state;
    if (shown !== conversation) {
      views = new Map();
      shown = conversation;
      following = true;
    }
    const before = scroller.scrollHeight;
    const begun = performance.now();
    const turns = path(conversation);
    const kept = new Map();
    for (const turn of turns) {
      const one = views.get(turn.id) ?? (turn.role === "user" ? userView(actions) : answerView(actions, speech, drawer));
      one.show(turn, state);
      kept.set(turn.id, one);
    }
    views = kept;
    welcome.hidden = turns.length > 0;
    fill(list, turns.map(({ id }) => kept.get(id).node));
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

const WELCOME = "Ask anything. While the answer is being written you can pause it, go on, and change how it is written.";

function userView(actions) {
  const text = h("div.text", { dir: "auto" });
  const media = h("div.media", { hidden: true });
  const buttons = h("div.actions");
  const node = h("li.turn.user", {}, h("h2.hidden", {}, "You"), media, text, buttons);
  let editor = null;
  let version = "";

  async function showContents(turn) {
    media.hidden = false;
    const { showMedia } = await import("./attach_shown.js");
    await showMedia(media, turn.media, actions.content);
  }

  return {
    node,
    show(turn, state) {
      if (turn.media && media.hidden) showContents(turn);
      const editing = state.editing === turn.id;
      if (editing && !editor) {
        editor = turnEditor(turn, actions);
        fill(node, node.firstChild, media, editor);
        editor.querySelector("textarea").focus();
      } else if (!editing) {
        editor = null;
        if (text.textContent !== turn.text) text.textContent = turn.text;
        fill(node, node.firstChild, media, turn.text && text, buttons);
      }
      const busy = state.run !== null;
      const key = [busy, branches(state.conversation, turn).length, state.conversation.chosen[turn.id]].join();
      if (key === version) return;
      version = key;
      refill(buttons, [
        walker(turn, state, actions),
        iconButton("edit", "Edit this question, as a branch", () => actions.edit(turn), { disabled: busy }),
        iconButton("copy", "Copy the question", () => navigator.clipboard.writeText(turn.text)),
        removal(turn, state, actions),
      ]);
    },
  };
}

function turnEditor(turn, actions) {
  const area = h("textarea", { value: turn.text, rows: 3, dir: "auto", "aria-label": "Question" });
  const send = () => actions.resend(turn, area.value);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") actions.edit(null);
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  const cancel = h("button", { type: "button", onclick: () => actions.edit(null) }, "Cancel");
  const ask = h("button.primary", { type: "button", onclick: send }, "Send");
  return h("div.editor", {}, area, h("div.row", {}, cancel, ask));
}

function answerView(actions, speech, drawer) {
  const thoughts = h("div.text", { dir: "auto" });
  const folded = h("details.thoughts", { hidden: true }, h("summary", {}, "Thoughts"), thoughts);
  const text = h("div.text.markdown");
  const note = h("p.note", { role: "status" });
  const figures = h("p.figures");
  const buttons = h("div.actions");
  const node = h("li.turn.answer", {}, h("h2.hidden", {}, "Answer"), folded, text, note, figures, buttons);
  let drawn = null;
  let version = "";

  return {
    node,
    show(turn, state) {
      const running = state.run?.answer === turn;
      const count = branches(state.conversation, turn).length;
      const spoken = state.voiced && (state.spoken === turn ? "now" : "");
      drawn ??= drawer(text);
      const now = [drawn !== null, state.versions.get(turn.id), state.probabilities, spoken, running && state.run.phase, !state.run, count];
      const key = [...now, running && state.run.note].join();
      if (key === version) return;
      version = key;
      node.dataset.turn = turn.id;
      node.setAttribute("aria-busy", String(running));
      node.dataset.phase = running ? state.run.phase : turn.error ? "failed" : "ended";
      drawn?.draw(turn, state.probabilities);
      tokensBy(text, state.probabilities);
      folded.hidden = !turn.thoughts;
      if (thoughts.textContent !== turn.thoughts) thoughts.textContent = turn.thoughts;
      note.textContent = running ? state.run.note || PHASES[state.run.phase] : (turn.error ?? "");
      figures.textContent = figuresOf(turn, running);
      buttons.hidden = running;
      if (running) return;
      refill(buttons, answerButtons(turn, state, actions, speech));
    },
  };
}

const PHASES = { waiting: "Reading the question…", writing: "", paused: "Paused.", lost: "" };

function tokensBy(text, shaded) {
  if (shaded === "tokens" in text.dataset) return;
  if (!shaded) {
    delete text.dataset.tokens;
    for (const name of ["tabindex", "role", "aria-label"]) text.removeAttribute(name);
    return;
  }
  text.dataset.tokens = "";
  text.tabIndex = 0;
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", "Answer, token by token: the arrow keys walk, Enter shows the alternatives");
}

function answerButtons(turn, state, actions, speech) {
  const busy = { disabled: state.run !== null };
  return [
    ...walker(turn, state, actions),
    iconButton("redo", "Answer again", () => actions.regenerate(turn), busy),
    iconButton("go_on", "Continue this answer", () => actions.goOn(turn), busy),
    iconButton("copy", "Copy the answer", () => navigator.clipboard.writeText(turn.text)),
    ...speech.buttons(turn),
    removal(turn, state, actions),
  ];
}

function removal(turn, state, actions) {
  const isLast = state.conversation.chosen[turn.id] === undefined;
  const remove = () => (isLast || confirm("Delete this turn and all that follow it?")) && actions.removeTurn(turn);
  return iconButton("remove", "Delete from here on", remove, { disabled: state.run !== null });
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

/** The copy buttons of code. */
function copyCode({ target }) {
  const button = target.closest("[data-copy]");
  if (!button) return;
  navigator.clipboard.writeText(button.closest("figure").querySelector("code").textContent);
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
