// What the daemon says, in words for people: what happened, and what to do.

const ERRORS = {
  context_length_exceeded: "The conversation is longer than the model can read. Delete some turns, or begin a new one.",
  content_filter: "The server's content filter refuses this. Change the question.",
  memory_pressure: "The box has no memory left for this now. Try again in a moment.",
  timeout: "This took longer than the server allows. Try again, or ask for a shorter answer.",
  model_loading_error: "The model could not be loaded. Choose another one, or ask who runs the server.",
  rate_limited: "The box is busy, or your key's limit is reached.",
  ask_operator: "Whoever runs the server has ended this answer. Ask them why.",
  lost: "The connection was lost, and the answer with it. What has come so far is here: continue it, or ask again.",
  unreachable: "The server can't be reached. Ask again when it is back.",
  authenticate: "The server needs an API key, or doesn't know yours.",
  restart: "The connection was lost, and the server doesn't have this answer any more. What has come so far is here: continue it, or ask again.",
  reconnect: "The server is shutting down. Continue the answer when it is back.",
  none: "The server failed at this. Try again; if it happens again, its log says why.",
};

/** Where a message of `/generate` has the contents of a medium. */
const ATTACHED = /^prompt\[\d+\]\.content\[\d+\]\.data: /;

/** One sentence or two about an error message of /generate. */
export function errorWords({ error, recovery_action: action, message = "", retry_after_ms: wait }) {
  const known = ERRORS[error] ?? ERRORS[action];
  if (known === undefined && ATTACHED.test(message)) {
    return `The server can't read what is attached: ${message.replace(ATTACHED, "")}. Delete that question, and ask without it.`;
  }
  if (known === undefined) return `The server does not take this: ${message}`;
  const when = wait === undefined ? "" : ` Try again in ${seconds(wait)}.`;
  return known + when;
}

const ENDS = {
  stop: "finished",
  edited: "edited",
  length: "cut at its length",
  cancelled: "stopped",
  content_filter: "ended by the content filter",
};

/** What a generation waits for. */
export function statusWords({ operation, progress, position, eta_seconds: eta }) {
  const left = eta === undefined ? "" : `, about ${seconds(eta * 1000)} left`;
  if (operation === "model_loading") return `Loading the model: ${progress}%${left}`;
  if (operation === "queued") return `Waiting: number ${position} in the queue${left}`;
  return "";
}

/** The line under an answer, and what it unfolds to. */
export function figuresOf({ stats, end, model }, running) {
  if (!stats?.tokens) return ["", ""];
  const line = [`${stats.tokens} written`];
  if (stats.perSecond) line.unshift(`${stats.perSecond.toFixed(1)} tokens/s`);
  if (!running && end && end !== "stop") line.push(ENDS[end] ?? end);
  const rest = [`first token in ${seconds(stats.firstMs)}`];
  if (stats.prompt) rest.push(`${stats.prompt} prompt tokens, ${stats.cached} of them cached`);
  if (!running && end === "stop") rest.push(ENDS.stop);
  if (model) rest.push(model);
  return [line.join(" · "), rest.join(" · ")];
}

/** A model's name without its folder, its ending and its kind of weights; whole where another one would be called the same. */
export function shortName(id, all) {
  const brief = (name) => name.replace(/^.*\//, "").replace(/\.gguf$/i, "").replace(/[-._](?:I?Q\d\w*|B?F16|F32|MXFP4)$/i, "");
  return all.filter((other) => brief(other) === brief(id)).length > 1 ? id : brief(id) || id;
}

export function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`;
}

export function bytes(value) {
  if (value >= 2 ** 30) return `${(value / 2 ** 30).toFixed(1)} GiB`;
  return value >= 2 ** 20 ? `${(value / 2 ** 20).toFixed(value < 2 ** 24 ? 1 : 0)} MiB` : `${Math.ceil(value / 1024)} KiB`;
}
