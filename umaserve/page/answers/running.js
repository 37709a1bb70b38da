// Has an answer written: from the generation's messages to the answer's text, tokens, marks and figures.

import { generate } from "./generation.js";
import { errorWords, statusWords } from "../words.js";
import { messages } from "./conversation.js";
import { asAsked } from "./settings.js";

const ALTERNATIVES = 6;

/**
 * Goes on with `answer` to its end, and with its `request` where that was begun before the page was loaded again.
 * `tools` are functions that it may call, as the API has them. `change(f)` applies f to the state's run and then shows
 * the answer again; `ended` is called last. Returns the generation, to be steered.
 */
export function runAnswer({ api, conversation, answer, contents, settings, probabilities, tools, change, ended }) {
  const now = () => performance.now();
  const asked = now();
  const { tokens = 0, perSecond } = (answer.request && answer.stats) ?? {};
  let written = perSecond ? ((tokens - 1) * 1000) / perSecond : 0;
  let lastAt = 0;
  const { parameters, options } = asAsked(settings);
  const first = answer.request ? { type: "resume", request_id: answer.request.id, position: answer.request.position } : {
    type: "config",
    model: conversation.model || undefined,
    prompt: messages(conversation, answer, contents),
    tools,
    parameters,
    options: { ...options, include_generated_text: false, reasoning: "separate", include_logprobs: probabilities && ALTERNATIVES },
  };
  if (!answer.request) {
    if (answer.settings) mark(answer, settings);
    else answer.settings = { ...settings };
    Object.assign(answer, { stats: { tokens: 0 }, request: { id: null, position: 0, paused: false, from: answer.text.length } });
    delete answer.end;
    delete answer.error;
  }

  function figures(token) {
    const { stats } = answer;
    const at = now();
    if (stats.tokens === 0) stats.firstMs = at - asked;
    else if (lastAt > 0) written += at - lastAt;
    lastAt = at;
    stats.tokens += 1;
    if (written > 0) stats.perSecond = ((stats.tokens - 1) * 1000) / written;
    if (token.reasoning) answer.thoughts += token.reasoning;
    if (token.token) addText(answer, token);
    answer.request.position = token.position + 1;
  }

  return generate(api, first, {
    accepted: ({ model, model_info: info, request_id: id }) => change((run) => {
      answer.stats.context = info?.max_tokens;
      answer.model = model;
      answer.request.id = id;
      run.note = "";
    }),
    status: (message) => change((run) => (run.note = statusWords(message))),
    token: (token) => change((run) => {
      if (run.phase === "waiting") Object.assign(run, { phase: "writing", note: "" });
      figures(token);
    }),
    steered: (operation, parameters) => change((run) => {
      if (operation === "pause") run.phase = "paused";
      else if (operation === "resume") run.phase = "writing";
      else mark(answer, parameters);
      if (operation === "modify") return;
      answer.request.paused = operation === "pause";
      lastAt = 0;
    }),
    refused: (error) => change((run) => (run.note = errorWords(error))),
    lost: () => change((run) => {
      if (run.phase !== "lost") run.before = run.phase;
      run.phase = "lost";
      run.note = "The connection was lost. Trying again…";
      lastAt = 0;
    }),
    found: () => change((run) => {
      run.phase = run.before;
      run.note = "Reconnected.";
    }),
    done: ({ finish_reason: end, usage, tool_calls: calls, text }) => {
      if (calls) takeCalls(answer, calls, text);
      delete answer.request;
      answer.end = end;
      if (usage) Object.assign(answer.stats, { prompt: usage.prompt_tokens, cached: usage.prefix_reused_tokens });
      ended();
    },
    failed: (error) => {
      delete answer.request;
      answer.error = errorWords(error);
      ended();
    },
  });
}

function addText(answer, { token, logprobs }) {
  answer.text += token;
  const known = logprobs?.[0];
  const others = (logprobs ?? []).map(({ token: text, logprob }) => [text, logprob]);
  answer.tokens.push({ end: answer.text.length, logprob: known?.logprob, others });
}

/** What the model has called stands apart from what it says. */
function takeCalls(answer, calls, said) {
  answer.calls = calls.map(({ id, function: { name, arguments: args } }) => ({ id, name, arguments: args }));
  const text = answer.text.slice(0, answer.request.from) + said;
  const kept = answer.text.startsWith(text) ? text.length : answer.request.from;
  Object.assign(answer, {
    text,
    tokens: answer.tokens.filter(({ end }) => end <= kept),
    marks: answer.marks.filter(({ at }) => at <= kept),
  });
}

/** Notes that from here on the settings are others. */
function mark(answer, parameters) {
  const before = Object.assign({}, answer.settings, ...answer.marks.map(({ values }) => values));
  const changed = Object.entries(parameters).filter(([name, value]) => before[name] !== value);
  if (changed.length === 0) return;
  const values = Object.fromEntries(changed);
  const last = answer.marks[answer.marks.length - 1];
  if (last?.at === answer.text.length) Object.assign(last.values, values);
  else answer.marks.push({ at: answer.text.length, values });
}
