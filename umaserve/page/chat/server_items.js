// A conversation as the daemon's /v1/conversations keeps it: items for its turns, and texts for what else belongs to it.
//
// A turn is a message of its id; calls and their results follow it. In `umaserve_page` an item has what the API has no
// place for: `parent`, and an answer's fields in ABOUT. What programs have added has none of it: it follows what stands
// before it. Left out are token probabilities, and which tools are switched on.

import { path, quoted, ROOT } from "../answers/conversation.js";
import { KINDS, TEXT, fromBase64 } from "./attach_media.js";
import { readAnswer, readSettings } from "./exported_file.js";

const OWN = "umaserve_page";
const ABOUT = ["media", "thoughts", "marks", "settings", "model", "stats", "end", "error"];
const FIGURES = ["tokens", "perSecond", "firstMs", "prompt", "cached", "context"];
/** The API's: pairs of a conversation, and bytes of each. */
const MOST_PAIRS = 16;
const MOST_BYTES = 512;

// -- turns

/** `contents` has the contents of its media by their ids: texts as they are, others in base64. */
export function itemsOf(turn, contents) {
  const { id, parent, role, text, media = [], calls = [] } = turn;
  const own = { parent };
  for (const name of ABOUT) if (turn[name] !== undefined) own[name] = turn[name];
  const parts = media.map((medium) => partOf(medium, contents.get(medium.id)));
  if (role === "assistant") parts.push({ type: "output_text", text, annotations: [] });
  else if (text !== "" || parts.length === 0) parts.push({ type: "input_text", text });
  return [{ type: "message", id, role, content: parts, [OWN]: own }, ...calls.flatMap((call, i) => callItems(id, call, i))];
}

/** Tells whether a turn has changed. */
export function printOf(turn) {
  return JSON.stringify(itemsOf(turn, new Map()));
}

function partOf({ kind, name, type }, content) {
  if (kind === TEXT) return { type: "input_text", text: quoted(name, content ?? "") };
  if (kind === "image") return { type: "input_image", image_url: `data:${type};base64,${content}` };
  // The daemon looks into the sound itself, whatever it is called: the API has two names only.
  if (kind === "audio") return { type: "input_audio", input_audio: { data: content, format: type === "audio/mpeg" ? "mp3" : "wav" } };
  throw new Error(`the server keeps no ${KINDS[kind]}`);
}

function callItems(turn, { id, name, arguments: args, result }, i) {
  const called = { type: "function_call", id: `${turn}-${i}`, call_id: id, name, arguments: args, [OWN]: { turn } };
  if (result === undefined) return [called];
  return [called, { type: "function_call_output", id: `${turn}-${i}-result`, call_id: id, output: result, [OWN]: { turn } }];
}

/** {turns, held, blobs}: the items of each turn are held as {ids, print}; the contents of media are by their ids. */
export function turnsOf(items) {
  const [turns, ids, blobs] = [{}, {}, new Map()];
  let last = ROOT;
  const add = (turn, item) => {
    turns[turn.id] = turn;
    ids[turn.id] = [item.id];
    last = turn.id;
    return turn;
  };
  for (const item of items) {
    const own = item[OWN] ?? {};
    const parent = own.parent ?? last;
    if (item.type === "message" && item.role === "user") add({ id: item.id, parent, role: "user", ...readQuestion(item, own, blobs) }, item);
    else if (item.type === "message" && item.role === "assistant") add(readSaid(item, parent, own, textOf(item.content)), item);
    else if (item.type === "function_call" || item.type === "function_call_output") {
      const there = turns[own.turn ?? last];
      const answer = there?.role === "assistant" ? there : add(readSaid(item, last, {}, ""), item);
      if (!ids[answer.id].includes(item.id)) ids[answer.id].push(item.id);
      takeCall(answer, item);
    }
  }
  const placed = inOrder(turns);
  const held = Object.fromEntries(Object.values(placed).map((turn) => [turn.id, { ids: ids[turn.id], print: printOf(turn) }]));
  return { turns: placed, held, blobs };
}

function readQuestion({ id, content }, { media: entries = [] }, blobs) {
  const [media, texts] = [[], []];
  const parts = typeof content === "string" ? [{ type: "input_text", text: content }] : content;
  parts.forEach((part, i) => {
    const blob = blobOf(part, entries[i]);
    if (!blob) return texts.push(part.text ?? "");
    const [kind] = blob.type.split("/");
    const medium = { id: entries[i]?.id ?? `${id}-${i}`, kind, name: String(entries[i]?.name ?? kind), type: blob.type, size: blob.size };
    blobs.set(medium.id, blob);
    return media.push(medium);
  });
  return { text: texts.join("\n\n"), ...(media.length > 0 && { media }) };
}

/** Null for a text that somebody has written. */
function blobOf({ type, text, image_url: url, input_audio: sound }, entry) {
  if (entry?.kind === TEXT) return new Blob([unquoted(String(text))], { type: "text/plain" });
  const [, image, data] = /^data:(image\/[\w.+-]+);base64,(.*)$/s.exec(url ?? "") ?? [];
  if (type === "input_image" && image) return fromBase64(data, image);
  if (type !== "input_audio") return null;
  return fromBase64(sound.data, entry?.type?.startsWith("audio/") ? entry.type : `audio/${sound.format}`);
}

/** What `quoted` was given. */
function unquoted(text) {
  return /^.*?:\n(`{3,})\n(.*)\n\1$/s.exec(text)?.[2] ?? text;
}

function readSaid({ id }, parent, own, text) {
  const answer = { id, parent, role: "assistant", text, ...readAnswer({ ...own, text }) };
  const figures = FIGURES.filter((name) => Number.isFinite(own.stats?.[name])).map((name) => [name, own.stats[name]]);
  if (figures.length > 0) answer.stats = Object.fromEntries(figures);
  if (own.error !== undefined) answer.error = String(own.error);
  return answer;
}

function textOf(content) {
  return typeof content === "string" ? content : content.map(({ text, refusal }) => text ?? refusal ?? "").join("");
}

function takeCall(answer, { type, call_id: id, name, arguments: args, output }) {
  answer.calls ??= [];
  if (type === "function_call") answer.calls.push({ id, name, arguments: args });
  const call = answer.calls.find((each) => each.id === id);
  if (type === "function_call_output" && call) {
    Object.assign(call, { state: "done", result: typeof output === "string" ? output : JSON.stringify(output) });
  }
}

/** The turns, each after the one that it follows; those that follow none that is there begin the conversation. */
export function inOrder(turns) {
  const placed = {};
  for (const turn of Object.values(turns)) {
    const chain = new Set();
    for (let each = turn; each && !placed[each.id] && !chain.has(each); each = turns[each.parent]) chain.add(each);
    for (const each of [...chain].reverse()) {
      if (!placed[each.parent]) each.parent = ROOT;
      placed[each.id] = each;
    }
  }
  return placed;
}

// -- what else belongs to it

/** {title, changed, model, system, settings, shown}: texts, `shown` being the last turn of the branch that is shown. */
export function aboutOf(conversation) {
  const { title, changed, model, system, settings } = conversation;
  const shown = path(conversation).at(-1)?.id ?? "";
  return { title, changed: String(changed), model, system, settings: JSON.stringify(settings), shown };
}

/** The texts as the API's pairs: one that is too long for a pair goes on in others. Throws where they are too many. */
export function metadataOf(about) {
  const all = Object.entries(about).flatMap(([name, text]) => {
    return pieces(text).map((piece, i) => [i > 0 ? `${name}.${i + 1}` : name, piece]);
  });
  if (all.length > MOST_PAIRS) throw new Error("its system prompt and settings are too long for the server");
  return Object.fromEntries(all);
}

function pieces(text) {
  const encoder = new TextEncoder();
  const all = [];
  let left = 0;
  for (const character of text) {
    const size = encoder.encode(character).length;
    if (left < size) {
      all.push("");
      left = MOST_BYTES;
    }
    all[all.length - 1] += character;
    left -= size;
  }
  return all;
}

export function readMetadata(metadata) {
  const read = (name) => {
    let text = metadata[name] ?? "";
    for (let i = 2; metadata[`${name}.${i}`] !== undefined; i++) text += metadata[`${name}.${i}`];
    return text;
  };
  return Object.fromEntries(["title", "changed", "model", "system", "settings", "shown"].map((name) => [name, read(name)]));
}

/** A conversation's fields, of the texts about it and its turns. */
export function readAbout({ title, changed, model, system, settings, shown }, turns) {
  const chosen = {};
  for (const { id, parent } of Object.values(turns)) chosen[parent] = id;
  for (let turn = turns[shown]; turn; turn = turns[turn.parent]) chosen[turn.parent] = turn.id;
  return { title, model, system, changed: Number(changed) || 0, settings: readSettings(parsed(settings)), chosen };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {}; // A program's own words.
  }
}
