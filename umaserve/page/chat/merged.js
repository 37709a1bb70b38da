// One conversation of what this browser has made of it, and others.

import { aboutOf, inOrder, printOf, readAbout } from "./server_items.js";

/** What is here and what is on the server, as one: each change since `here.server` was read is in it. */
export function merged(here, there) {
  const base = here.server;
  const both = {};
  const held = { ...there.server.held };
  for (const [id, turn] of Object.entries(here.turns)) {
    const known = base.held[id];
    const changed = known?.print !== printOf(turn);
    // One that was here as it is there, and is there no more, was deleted there.
    if (!there.turns[id] && known && !changed) continue;
    if (there.turns[id] && !changed) both[id] = { ...there.turns[id], ...(turn.text === there.turns[id].text && { tokens: turn.tokens }) };
    else {
      both[id] = { ...turn };
      if (held[id]) held[id] = { ...held[id], print: "" };
    }
  }
  for (const [id, turn] of Object.entries(there.turns)) if (!here.turns[id] && !base.held[id]) both[id] = turn;
  const turns = inOrder(both);
  const mine = aboutOf(here);
  const about = Object.fromEntries(Object.entries(mine).map(([name, text]) => {
    return [name, text !== base.about[name] ? text : there.server.about[name]];
  }));
  about.changed = String(Math.max(here.changed, there.changed));
  return { id: here.id, created: here.created, ...readAbout(about, turns), turns, server: { ...there.server, held } };
}
