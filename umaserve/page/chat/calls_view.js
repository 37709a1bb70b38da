// The calls of an answer: folded, with what each is called with and what came of it; and the question whether it may run.

import { visible } from "../answers/answer_text.js";
import { h, loadStyle, shownBy, write } from "../dom.js";
import { nameOfServer } from "../tools/servers.js";

await loadStyle("/page/chat/tools.css");

const STATES = {
  asked: "may it run?",
  running: "runs…",
  done: "done",
  failed: "failed",
  refused: "not allowed",
  undefined: "has not run",
};
const CHOICES = [
  ["once", "Run once"],
  ["always", "Always run this tool"],
  ["refuse", "Don't run"],
  ["never", "Never run this tool"],
];

export function callsView(actions) {
  const node = h("div.calls");
  const showAll = shownBy(({ call }) => call.id, ({ call }) => callView(call.name, actions), node);
  /** `running`: whether they are being run, and asked for, in this tab. */
  return { node, show: (calls, running) => showAll(calls.map((call) => ({ call, running }))) };
}

function callView(name, actions) {
  const [summary, from] = [h("summary"), h("p.hint")];
  const [given, came] = [passage("Arguments"), passage("Result")];
  const folded = h("details.call", {}, summary, from, given.node, came.node);
  const buttons = CHOICES.map(([said, words]) => {
    return h(said === "once" ? "button.primary" : "button", { onclick: () => actions.decide(call, said) }, words);
  });
  const choices = h("div.row.choices", { role: "group", "aria-label": `May ${name} run?` }, buttons);
  const node = h("div", {}, folded, choices);
  let [call, shown] = [null, null];

  function show({ call: now, running }) {
    call = now;
    const { arguments: args, address, result } = call;
    const state = running || result !== undefined ? call.state : undefined;
    if (state !== shown && (state === "asked" || shown === "asked")) folded.open = state === "asked";
    shown = state;
    choices.hidden = state !== "asked";
    write(summary, visible(`Calls ${name}: ${STATES[state]}`));
    write(from, address ? `A tool of ${nameOfServer(address)}. It gets:` : "");
    given.write(readable(args));
    came.write(result ?? "");
  }

  return { node, show };
}

/** A stranger's text, which is only ever text. What is long scrolls by itself, with the keyboard too. */
function passage(label) {
  const text = h("code", { dir: "auto" });
  const node = h("pre", { tabIndex: 0, role: "group", "aria-label": label, hidden: true }, text);
  return {
    node,
    write(words) {
      node.hidden = words === "";
      write(text, visible(words));
    },
  };
}

function readable(args) {
  try {
    return JSON.stringify(JSON.parse(args || "{}"), null, 2);
  } catch {
    return args;
  }
}
