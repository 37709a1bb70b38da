// The file that conversations are taken along in, and what is read of such a file.

import { newId, path, ROOT } from "../answers/conversation.js";
import { SETTINGS, defaults } from "../answers/settings.js";
import { KINDS, TEXT, fromBase64, toBase64 } from "./attach_media.js";
import { mediaOf } from "./library.js";

const FORMAT = "umaserve-conversations";

/** All conversations as JSON, and the media that the browser still has by their ids. */
export async function exported(library) {
  const conversations = await library.all();
  const media = {};
  for (const { id } of conversations.flatMap(({ turns }) => mediaOf(turns))) {
    const blob = await library.content(id);
    if (blob) media[id] = await toBase64(blob);
  }
  // Which copy the server has is of no use to another browser.
  const whole = conversations.map(({ server: _server, wanted: _wanted, ...conversation }) => conversation);
  return JSON.stringify({ format: FORMAT, version: 1, conversations: whole, media });
}

/** One conversation as it is shown, to be read. */
export function asMarkdown(conversation) {
  const system = conversation.system.trim() && `> ${conversation.system.trim().replaceAll("\n", "\n> ")}`;
  const turns = path(conversation).map(({ role, text, media = [], calls = [], model }) => {
    const who = role === "user" ? "You" : model || "Answer";
    const beside = [...media.map(({ name }) => `*Attached: ${name}*`), ...calls.map(({ name }) => `*Calls ${name}*`)];
    return [`## ${who}`, ...beside, text].filter(Boolean).join("\n\n");
  });
  return [`# ${conversation.title}`, system, ...turns].filter(Boolean).join("\n\n") + "\n";
}

/** Adds those of an exported file, beside what is there; returns how many. Throws on other files. */
export async function imported(library, text) {
  const { format, conversations, media = {} } = JSON.parse(text);
  if (format !== FORMAT || !Array.isArray(conversations)) throw new Error("not a file of conversations");
  const read = conversations.map((each) => readConversation(each, media));
  for (const each of read) {
    for (const medium of mediaOf(each.turns)) {
      await library.keep(each.id, medium.id, medium.blob);
      delete medium.blob;
    }
    await library.save(each);
  }
  return read.length;
}

/** What a file says of a conversation: known fields of known types, whatever else it has. */
function readConversation(value, contents) {
  const [turns, chosen] = [{}, {}];
  const ids = new Map();
  for (const each of Object.values(value.turns)) ids.set(each.id, newId());
  for (const each of Object.values(value.turns)) {
    const parent = each.parent === ROOT ? ROOT : ids.get(each.parent);
    // A turn stands after the one before it, so nothing can go in circles.
    const placed = parent === ROOT || parent in turns;
    if (!placed || !["user", "assistant"].includes(each.role)) throw new Error("a turn without a place");
    const turn = { id: ids.get(each.id), parent, role: each.role, text: String(each.text) };
    if (each.role === "assistant") Object.assign(turn, readAnswer(each));
    const there = (each.media ?? []).filter(({ id }) => id in contents);
    if (there.length > 0) turn.media = there.map((medium) => readMedium(medium, contents));
    turns[turn.id] = turn;
    chosen[parent] = turn.id;
  }
  for (const child of Object.values(value.chosen ?? {})) {
    const turn = turns[ids.get(child)];
    if (turn) chosen[turn.parent] = turn.id;
  }
  const [created, changed] = [Number(value.created) || Date.now(), Number(value.changed) || Date.now()];
  const about = { title: String(value.title), system: String(value.system), model: String(value.model) };
  return { id: newId(), ...about, created, changed, settings: readSettings(value.settings), turns, chosen };
}

/** With its `blob`. */
function readMedium({ id, kind, name, type }, contents) {
  if (!(kind in KINDS || kind === TEXT) || !String(type).startsWith(`${kind}/`)) throw new Error("a medium of no kind");
  const blob = fromBase64(contents[id], type);
  return { id: newId(), kind, name: String(name), type, size: blob.size, blob };
}

/** Whether these are places in the text, each at least `least` after the one before it. */
function rises(places, least, text) {
  const inside = places.every((place) => Number.isInteger(place) && place >= 0 && place <= text.length);
  return inside && places.every((place, i) => place >= (places[i - 1] ?? 0) + least);
}

/** What came of calls, and not what was allowed: a file allows nothing. */
function readCall(call) {
  const [id, name, args] = [String(call.id), String(call.name), String(call.arguments)];
  return { id, name, arguments: args, ...(call.result !== undefined && { state: "done", result: String(call.result) }) };
}

/** Known fields of known types, whatever else there is. */
export function readAnswer({ text, thoughts, tokens, marks, settings, end, model, calls }) {
  const number = (one) => (Number.isFinite(one) ? one : 0);
  const readTokens = (tokens ?? []).map((token) => ({
    end: number(token.end),
    logprob: number(token.logprob),
    others: (token.others ?? []).map(([piece, logprob]) => [String(piece), number(logprob)]),
  }));
  const readMarks = (marks ?? []).map(({ at, values }) => ({ at: number(at), values: readSettings(values, {}) }));
  return {
    thoughts: String(thoughts ?? ""),
    tokens: rises(readTokens.map((token) => token.end), 1, text) ? readTokens : [],
    marks: rises(readMarks.map((mark) => mark.at), 0, text) ? readMarks : [],
    settings: settings && readSettings(settings),
    end: end === undefined ? undefined : String(end),
    model: String(model ?? ""),
    ...(Array.isArray(calls) && { calls: calls.map(readCall) }),
  };
}

export function readSettings(values, base = defaults()) {
  const known = SETTINGS.filter(({ name }) => Number.isFinite(values?.[name])).map(({ name }) => [name, values[name]]);
  const { seed, stop, enable_thinking: thinks, reasoning_budget: budget } = values ?? {};
  if (Number.isInteger(seed)) known.push(["seed", seed]);
  if (Number.isInteger(budget)) known.push(["reasoning_budget", budget]);
  if (typeof thinks === "boolean") known.push(["enable_thinking", thinks]);
  if (Array.isArray(stop)) known.push(["stop", stop.map(String)]);
  return { ...base, ...Object.fromEntries(known) };
}
