// Where one writes, and steers what is being written.

import { fill, h, icon } from "../dom.js";

export function composer(store, actions) {
  const { state } = store;
  const area = h("textarea", { rows: 1, dir: "auto", placeholder: "Write a message", "aria-label": "Message" });
  const send = button("send", "Send", "Enter", () => actions.send(), "primary");
  const pause = button("pause", "Pause", "Alt+P", () => actions.pause());
  const resume = button("play", "Go on", "Alt+P", () => actions.resume(), "primary");
  const stop = button("stop", "Stop", "Escape", () => actions.stop());
  const buttons = h("div.row");

  area.addEventListener("input", () => actions.draft(area.value));
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    actions.send();
  });

  store.subscribe(() => {
    const phase = state.run?.phase;
    const focused = buttons.contains(document.activeElement);
    if (area.value !== state.draft) area.value = state.draft;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight / 3)}px`;
    send.disabled = !state.draft.trim();
    if (!phase) fill(buttons, send);
    else fill(buttons, phase === "paused" ? resume : pause, stop);
    pause.disabled = phase !== "writing";
    // The button that had the focus may be gone.
    if (focused && !buttons.contains(document.activeElement)) (buttons.querySelector("button:enabled") ?? area).focus();
  });
  const node = h("form.composer", { onsubmit: (event) => event.preventDefault() }, area, buttons);
  return { node, focus: () => area.focus() };
}

function button(name, label, key, onclick, kind = "plain") {
  const props = { type: "button", title: `${label} (${key})`, "aria-label": label, "aria-keyshortcuts": key, onclick };
  return h(`button.${kind}`, props, icon(name), h("span", {}, label));
}
