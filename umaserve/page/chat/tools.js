// The button for tools: how many are switched on in the conversation. What chooses them is loaded with its first use.

import { iconButton } from "../dom.js";

export function toolsButton(store, actions) {
  const button = iconButton("tool", "Tools", choose, { "aria-haspopup": "dialog" });

  async function choose() {
    const { chooseTools } = await import("./tool_chooser.js");
    chooseTools(store, actions);
  }

  store.subscribe(({ conversation: { tools = {} } }) => {
    const on = Object.values(tools).flatMap(Object.values).filter((how) => how !== "never").length;
    button.title = button.ariaLabel = on > 0 ? `Tools: ${on} switched on` : "Tools";
    button.classList.toggle("on", on > 0);
  });
  return button;
}
