// What others have made of a conversation becomes what is shown.

/** Makes `conversation` what `found` is, which another tab or browser has made of it; `answer` is the one that is being written in it here, if any is. */
export function takeOver(conversation, found, answer) {
  const { turns, chosen } = found;
  for (const [id, turn] of Object.entries(conversation.turns)) {
    if (turn === answer || (answer && !turns[id])) turns[id] = turn;
    else if (turns[id]) {
      // It stays the turn that buttons know.
      for (const field of ["end", "error", "request"]) delete turn[field];
      turns[id] = Object.assign(turn, turns[id]);
    }
  }
  Object.assign(conversation, found, { turns, chosen: answer ? { ...chosen, ...conversation.chosen } : chosen });
}
