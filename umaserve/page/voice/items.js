// What has been said in a conversation, as items of a session.

import { quoted } from "../answers/conversation.js";
import { toPcm } from "./pcm.js";

/** So much sound may go along: a session holds 16 MiB, and takes 4 MiB at once. */
const MOST_S = 60;
const MOST_OF_ALL_S = 150;

/**
 * `contents` has those of all media by their ids: texts as they are, others in base64. Of sounds only the newest go
 * along, at `rate` samples a second.
 */
export async function itemsOf(turns, contents, rate) {
  const items = [];
  let left = MOST_OF_ALL_S;

  async function soundOf(base64) {
    const { duration, data } = await decoded(base64, rate);
    if (duration > Math.min(MOST_S, left)) return text("[a recording, which is left out]");
    left -= duration;
    return { type: "input_audio", audio: toPcm(data) };
  }

  async function partOf({ id, kind, name, type }) {
    const content = contents.get(id);
    if (kind === "text") return text(quoted(name, content));
    if (kind === "image") return { type: "input_image", image_url: `data:${type};base64,${content}` };
    if (kind === "audio") return soundOf(content).catch(() => text(`[${name}, which can't be read]`));
    return text(`[${name}, a video]`);
  }

  for (const turn of turns.toReversed()) {
    const results = (turn.calls ?? []).flatMap(({ id, name, arguments: args, result = "" }) => [
      { type: "function_call", call_id: id, name, arguments: args },
      { type: "function_call_output", call_id: id, output: result },
    ]);
    items.unshift(...results);
    const parts = await Promise.all((turn.media ?? []).map(partOf));
    if (turn.text) parts.push(turn.role === "user" ? text(turn.text) : { type: "output_text", text: turn.text });
    if (parts.length > 0) items.unshift({ type: "message", role: turn.role, content: parts });
  }
  return items;
}

function text(words) {
  return { type: "input_text", text: words };
}

async function decoded(base64, rate) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  const sound = await new OfflineAudioContext(1, 1, rate).decodeAudioData(bytes.buffer);
  return { duration: sound.duration, data: sound.getChannelData(0) };
}
