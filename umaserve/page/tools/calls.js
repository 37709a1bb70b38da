// What an answer may call, and what it has called, which is run: each call is asked for, unless somebody has said what
// holds for its tool.
//
// A call: {id, name, arguments, address, tool, state, result}; `state` is asked, running, done, failed or refused, and
// absent before; `result` is what the model is told.

import { upTo } from "../answers/conversation.js";

/** Answers with calls to one question: a small model may call the same tool for ever. */
const MOST_ROUNDS = 8;
const ENOUGH = `The model has called tools ${MOST_ROUNDS} times in a row: it answers without them now.`;
const MAY_IT = "The model wants to call a tool. May it?";
const REFUSED = "The user does not allow this call.";

/** What `answer` may call: {functions, find, problems}, as the servers say it. */
export async function offered(conversation, answer, servers) {
  const turns = upTo(conversation, answer);
  const called = turns.slice(turns.findLastIndex(({ role }) => role === "user") + 1).filter(({ calls }) => calls);
  return called.length < MOST_ROUNDS ? servers.offered(conversation.tools) : { functions: [], find: () => undefined, problems: [ENOUGH] };
}

/**
 * Runs those of `calls` that have no result yet, one after another. `chosen` is {address: {tool: "ask" | "always" |
 * "never"}}. `asking({call, decide})` is called where one is asked for: decide("once" | "always" | "refuse" | "never").
 * `change(f)` applies f to the state's run, and shows it. Returns when all have results; throws where `signal` ended it.
 */
export async function runCalls(calls, { servers, chosen, asking, change, signal }) {
  const there = await servers.offered(chosen);
  for (const call of calls.filter(({ result }) => result === undefined)) {
    signal.throwIfAborted();
    try {
      const ended = await ran(call, { servers, chosen, asking, change, signal, found: there.find(call) });
      change(() => Object.assign(call, ended));
    } catch (error) {
      change(() => delete call.state);
      throw error;
    }
  }
}

/** The call's state and result at its end. */
async function ran(call, { servers, chosen, asking, change, signal, found }) {
  if (!found) return { state: "failed", result: `There is no tool ${call.name}.` };
  const { address, tool } = found;
  change(() => Object.assign(call, { address, tool: tool.name }));
  const args = argumentsOf(call);
  if (!args) return { state: "failed", result: "The arguments are no JSON object." };
  if (chosen[address]?.[tool.name] !== "always") {
    change((run) => {
      call.state = "asked";
      run.note = MAY_IT;
    });
    const said = await new Promise((decide, leave) => {
      signal.addEventListener("abort", () => leave(signal.reason), { once: true });
      asking({ call, decide });
    });
    change((run) => (run.note = ""));
    if (said === "always" || said === "never") change(() => ((chosen[address] ??= {})[tool.name] = said));
    if (said === "refuse" || said === "never") return { state: "refused", result: REFUSED };
  }
  change(() => (call.state = "running"));
  const { text, failed } = await servers.call(found, args, signal);
  return { state: failed ? "failed" : "done", result: text };
}

function argumentsOf(call) {
  try {
    const args = JSON.parse(call.arguments || "{}");
    return typeof args === "object" && !Array.isArray(args) ? args : null;
  } catch {
    return null;
  }
}
