// What belongs to an answer: its thoughts, its text, what it waits for, and its figures.

import { h, write } from "../dom.js";
import { figuresOf } from "../words.js";

const UNFINISHED = "Not finished. Unless another tab is writing it, continue it, or ask again.";
const CALLS_LEFT = "Not all of its calls have run. Continue this answer to run them.";
const PHASES = { waiting: "Reading the question…", writing: "", paused: "Paused.", lost: "", calling: "", talking: "" };

/** For `node`, which shows that the answer is being written; `text` is to be drawn into by an `AnswerText`. */
export function answerView(node) {
  const thoughts = h("div.text", { dir: "auto" });
  const folded = h("details.thoughts", {}, h("summary", {}, "Thoughts"), thoughts);
  const text = h("div.text.markdown");
  const note = h("p.note", { role: "status" });
  const [line, rest] = [h("summary"), h("p")];
  const figures = h("details.figures", {}, line, rest);
  node.append(text, note, figures);

  /** `run` is {phase, note} while it is being written, else null. */
  function show(answer, run) {
    node.setAttribute("aria-busy", String(run !== null));
    node.dataset.phase = run ? run.phase : answer.error ? "failed" : "ended";
    if (!answer.thoughts) folded.remove();
    else if (!folded.isConnected) text.before(folded);
    write(thoughts, answer.thoughts);
    const callsLeft = answer.calls?.some(({ result }) => result === undefined) ? CALLS_LEFT : "";
    const left = answer.error ?? (answer.request ? UNFINISHED : callsLeft);
    write(note, run ? run.note || PHASES[run.phase] : left);
    const [brief, more] = figuresOf(answer, run !== null);
    figures.hidden = brief === "";
    write(line, brief);
    write(rest, more);
  }

  return { text, show };
}
