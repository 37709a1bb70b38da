// The voice mode's button, and its place above the composer. The mode itself is loaded when somebody wants to talk.

import { h, iconButton } from "../dom.js";

const DEAF = "No model here hears. Whoever runs the server can give one a projector for sounds (--mmproj).";

export function voice(app, store, actions, speech) {
  const button = iconButton("talk", "Talk", toggle, { "aria-controls": "voice", "aria-expanded": "false" });
  const place = h("section.voice", { id: "voice", "aria-label": "Voice mode", hidden: true });
  let mode = null;

  async function toggle() {
    if (mode) return close();
    if (button.ariaDisabled === "true") return actions.tell(DEAF);
    const { voiceMode } = await import("./voice_mode.js");
    mode ??= voiceMode(place, { app, store, actions, speech, close });
    button.ariaExpanded = "true";
  }

  function close() {
    if (!mode) return;
    mode.end();
    mode = null;
    button.ariaExpanded = "false";
    button.focus();
  }

  app.store.subscribe(({ models }) => {
    // Of a model that has not been loaded yet nobody knows.
    const hears = models.some(({ architecture: known }) => known?.input_modalities.includes("audio") ?? true);
    button.ariaDisabled = String(!hears);
    button.title = button.ariaLabel = hears ? "Talk" : `Talk: ${DEAF}`;
  });
  return { button, place, close };
}
