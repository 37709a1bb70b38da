// What else could have stood in a token's place: a list to choose from, beside the token.

import { h, placeBeside } from "../dom.js";
import { visible } from "../answers/answer_text.js";

/** Makes tokens within `root` open their alternatives. `answerOf(element)` is the answer that an element is of. */
export function tokenChooser(root, answerOf, choose) {
  const list = h("div.over.alternatives", { popover: "auto", role: "dialog", "aria-label": "Alternatives of a token" });
  root.append(list);

  function open(element) {
    const answer = answerOf(element);
    const index = Number(element.dataset.token);
    const token = answer.tokens[index];
    const others = [...token.others].sort((a, b) => b[1] - a[1]);
    const chosen = token.others[0];
    list.replaceChildren(
      h("p", {}, others.length > 0 ? "Go on from here with" : "No probabilities are known of this one."),
      ...others.map((other) => h("button", {
        disabled: other === chosen || other[0].includes("\ufffd"),
        onclick: () => {
          list.hidePopover();
          choose(answer, index, other[0]);
        },
      }, h("span.piece", {}, shown(other[0])), h("span.percent", {}, percent(other[1])))),
    );
    list.showPopover();
    placeBeside(list, element);
    list.querySelector("button:enabled")?.focus();
    list.ontoggle = ({ newState }) => newState === "closed" && element.isConnected && element.focus();
  }

  root.addEventListener("click", ({ target }) => {
    const element = target.closest("[data-token]");
    if (element && !target.closest("a")) open(element);
  });
  root.addEventListener("keydown", (event) => {
    const element = event.target.closest("[data-token], [data-tokens]");
    if (!element) return;
    const all = [...element.closest("[data-tokens]").querySelectorAll("[data-token]")];
    const at = all.indexOf(element);
    if (event.key === "ArrowRight") all[at + 1]?.focus();
    else if (event.key === "ArrowLeft") all[Math.max(0, at - 1)]?.focus();
    else if ((event.key === "Enter" || event.key === " ") && at >= 0) open(element);
    else return;
    event.preventDefault();
  });
}

function shown(text) {
  return visible(text.replaceAll("\n", "⏎").replace(/^ | $/g, "␣")) || "(end)";
}

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return value < 0.1 ? "< 0.1%" : `${value.toFixed(1)}%`;
}
