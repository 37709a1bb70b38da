// A conversation's title in the model's words, made in the background once its first answer is there.

import { path } from "../answers/conversation.js";

const ASKED = "Give the conversation above a title of at most six words, in its language. Answer with the title alone.";
const MOST_CHARACTERS = 2000;

/** Gives a title where only the first answer is there, and nobody names it meanwhile. Throws `ApiError`. */
export async function entitle(api, conversation, rename) {
  const turns = Object.values(conversation.turns);
  if (turns.length !== 2 || !turns[1].end) return;
  const { title } = conversation;
  const wanted = await titleOf(api, conversation);
  if (wanted && conversation.title === title) await rename(conversation.id, wanted);
}

async function titleOf(api, conversation) {
  const said = path(conversation).slice(0, 2).map(({ role, text }) => ({ role, content: text.slice(0, MOST_CHARACTERS) }));
  const messages = [...said, { role: "user", content: ASKED }];
  const body = { messages, model: conversation.model || undefined, max_tokens: 24, temperature: 0.3, enable_thinking: false };
  // Whoever waits for an answer comes first.
  const headers = { "Content-Type": "application/json", "X-Umaserve-Priority": "background" };
  const response = await api.fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body) });
  const { choices } = await response.json();
  const [line] = (choices[0].message.content ?? "").trim().split("\n", 1);
  return line.replace(/^["“'*#\s]+|["”'*.\s]+$/g, "").slice(0, 80);
}
