// A conversation is a tree of turns: an edited question or another answer is a branch. Plain data, and what it means.
//
// A turn: {id, parent, role, text, …}, a question may have `media`: [{id, kind, name, type, size}, …]; an answer also {thoughts, tokens, marks, settings, model, stats, end, error},
// and while it is written `request`: {id, position, paused, from}, by which it can be resumed. An answer that calls tools
// has `calls`, as tools/calls.js says, and the answer to their results follows it. A conversation may have `tools`:
// {server's address: {tool: "ask" | "always" | "never"}}, those that are switched on.
// `tokens` are {end, logprob, others: [[text, logprob], …]}, `end` counting characters of `text`; `marks` are
// {at, values}: from character `at` on, these `settings` were others. `chosen` has the branch that is shown, by parent.

export const ROOT = "";

export function newConversation(model, system, settings) {
  const now = Date.now();
  const about = { id: newId(), title: "", created: now, changed: now, model, system, settings };
  return { ...about, turns: {}, chosen: {} };
}

/** The turns that are shown, from the first to the last. */
export function path(conversation) {
  const turns = [];
  for (let id = conversation.chosen[ROOT]; id !== undefined; id = conversation.chosen[id]) {
    turns.push(conversation.turns[id]);
  }
  return turns;
}

/** The branches that a turn is one of, the oldest first. */
export function branches(conversation, turn) {
  return Object.values(conversation.turns).filter((each) => each.parent === turn.parent);
}

/** Adds a turn as the newest branch after `parent`, and shows it. */
export function addTurn(conversation, parent, role, fields) {
  const turn = { id: newId(), parent, role, text: "", ...fields };
  conversation.turns[turn.id] = turn;
  conversation.chosen[parent] = turn.id;
  conversation.changed = Date.now();
  if (role === "user" && !conversation.title) conversation.title = titleOf(turn.text || turn.media[0].name);
  return turn;
}

/** Removes a turn and all that follows it; the branch beside it is shown. */
export function removeTurn(conversation, turn) {
  const [all, gone] = [branches(conversation, turn), new Set([turn.id])];
  for (const each of Object.values(conversation.turns)) if (gone.has(each.parent)) gone.add(each.id);
  for (const id of gone) {
    delete conversation.turns[id];
    delete conversation.chosen[id];
  }
  const i = all.indexOf(turn);
  const beside = all[i - 1] ?? all[i + 1];
  if (beside) conversation.chosen[turn.parent] = beside.id;
  else delete conversation.chosen[turn.parent];
  conversation.changed = Date.now();
}

/** The turns from the first up to `last`. */
export function upTo(conversation, last) {
  const turns = [];
  for (let turn = last; turn; turn = conversation.turns[turn.parent]) turns.unshift(turn);
  return turns;
}

/**
 * What the model is sent: the system prompt and the turns up to `last`, which may be an answer that goes on. `contents`
 * has the contents of all media by their ids: texts as they are, which become part of the question, others in base64.
 */
export function messages(conversation, last, contents) {
  const said = upTo(conversation, last).filter(({ text, media, calls }) => text !== "" || media || calls);
  const told = said.flatMap(({ role, text, media = [], calls }) => {
    if (calls) return withResults(text, calls);
    const [texts, others] = [media.filter(({ kind }) => kind === "text"), media.filter(({ kind }) => kind !== "text")];
    const parts = others.map(({ id, kind }) => ({ type: kind, data: contents.get(id) }));
    const whole = [...texts.map(({ id, name }) => quoted(name, contents.get(id))), text].filter(Boolean).join("\n\n");
    if (whole !== "" && parts.length > 0) parts.push({ type: "text", text: whole });
    return { role, content: parts.length > 0 ? parts : whole };
  });
  return conversation.system.trim() ? [{ role: "system", content: conversation.system }, ...told] : told;
}

const NOT_RUN = "The user has stopped this call.";

/** An answer with calls, and what came of each. */
function withResults(text, calls) {
  const made = calls.map(({ id, name, arguments: args }) => ({ id, type: "function", function: { name, arguments: args } }));
  const results = calls.map(({ id, result = NOT_RUN }) => ({ role: "tool", tool_call_id: id, content: result }));
  return [{ role: "assistant", content: text, tool_calls: made }, ...results];
}

/** A file's text with its name, in a fence that is longer than any in it. */
export function quoted(name, text) {
  let fence = "```";
  for (const [ticks] of text.matchAll(/`{3,}/g)) if (ticks.length >= fence.length) fence = `${ticks}\``;
  return `${name}:\n${fence}\n${text.trimEnd()}\n${fence}`;
}

/** The beginning of an answer, up to token number `index`, and then `text`, as fields of another answer. */
export function beginning(answer, index, text) {
  const at = index > 0 ? answer.tokens[index - 1].end : 0;
  return {
    text: answer.text.slice(0, at) + text,
    thoughts: answer.thoughts,
    tokens: [...answer.tokens.slice(0, index), { end: at + text.length, chosen: true, others: [] }],
    marks: answer.marks.filter((mark) => mark.at <= at),
    settings: answer.settings,
  };
}

function titleOf(text) {
  const line = text.trim().split("\n", 1)[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

export function newId() {
  return crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint32Array(4)), (n) => n.toString(36)).join("");
}
