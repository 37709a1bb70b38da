// Where one writes, and steers what is being written.

import { path } from "../answers/conversation.js";
import { h, icon, iconButton, messageField, refill } from "../dom.js";

/** `more` are buttons beside that for attachments. */
export function composer(store, actions, app, more) {
  const { state } = store;
  const draft = () => actions.draft(area.value);
  const named = { rows: 1, placeholder: "Write a message", "aria-label": "Message" };
  const area = messageField(() => actions.send(), { ...named, oninput: draft, onpaste: paste });
  const send = button("send", "Send", "Enter", () => actions.send(), "primary");
  const pause = button("pause", "Pause", "Alt+P", () => actions.pause());
  const resume = button("play", "Go on", "Alt+P", () => actions.resume(), "primary");
  const stop = button("stop", "Stop", "Escape", () => actions.stop());
  const attach = iconButton("clip", "Attach", () => attaching((all) => (attach.ariaExpanded = String(all.toggle()))));
  const attached = h("div.attached");
  const buttons = h("div.row");
  const gauge = h("meter.gauge", { min: 0, hidden: true });
  let loading = null;

  /** What is seldom used is loaded when it is. */
  async function attaching(use) {
    loading ??= import("./attach.js").then(({ attachments }) => attachments(attached, store, actions, app));
    use(await loading);
  }

  function take(event, { files }) {
    if (files.length === 0) return;
    event.preventDefault();
    const taken = [...files];
    attaching((all) => all.add(taken));
  }

  function paste(event) {
    // Some programs put a picture of their text beside it.
    if (!event.clipboardData.types.includes("text/plain")) take(event, event.clipboardData);
  }

  store.subscribe(() => {
    const phase = state.run?.phase;
    if (area.value !== state.draft) area.value = state.draft;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight / 3)}px`;
    send.disabled = !state.draft.trim() && state.attached.length === 0;
    pause.disabled = phase !== "writing";
    showContext(gauge, path(state.conversation).findLast(({ stats }) => stats?.prompt));
    refill(buttons, phase ? [phase === "paused" ? resume : pause, stop] : send, area);
  });
  const card = h("div.card", {}, attached, area, h("div.row.tools", {}, attach, more, gauge, buttons));
  const node = h("form.composer", {}, card);
  return { node, focus: () => area.focus(), drop: (event) => take(event, event.dataTransfer) };
}

/** How much of what the model can read the conversation takes, after its last answer. */
function showContext(gauge, answer) {
  const { prompt, tokens, context } = answer?.stats ?? {};
  gauge.hidden = !context;
  if (!context) return;
  const words = `${(prompt + tokens).toLocaleString("en-GB")} of ${context.toLocaleString("en-GB")} tokens that the model can read`;
  Object.assign(gauge, { max: context, high: 0.8 * context, value: prompt + tokens, title: words, ariaLabel: words });
}

function button(name, label, key, onclick, kind = "plain") {
  const props = { title: `${label} (${key})`, "aria-label": label, "aria-keyshortcuts": key, onclick };
  return h(`button.${kind}`, props, icon(name), h("span", {}, label));
}
