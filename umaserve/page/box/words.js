// What the box says, in words for people.

const WHY = {
  model: "waits until its model is loaded",
  other_model: "waits: its model makes way for another one",
  pause: "paused by its client",
  reader: "waits for its client to read",
  detached: "waits for its client to come back",
  trial: "waits: a request that may have crashed the engine runs alone",
  preparing: "its prompt is being prepared",
  media: "its images or sounds are being read",
  prefix: "waits for a request that begins alike",
  disk: "what it begins with is read from disk",
  slots: "waits for a place",
  cells: "waits for room in the KV cache",
  turn: "comes next, after those before it",
};

const MODEL_STATES = { unloaded: "not loaded", loaded: "loaded", unloading: "being unloaded", failed: "could not be loaded" };

export function stateWords({ state, why, tokens, prompt_tokens: prompt, prompt_tokens_done: done }) {
  const reason = why === null ? "" : (WHY[why] ?? why);
  if (state === "waiting") return tokens > 0 && why !== "pause" ? `lost its place for now; ${reason}` : reason;
  if (state === "held") return reason;
  return state === "prompt" ? `reads its prompt, ${done} of ${prompt}` : "writes";
}

export function whoWords({ key, peer }) {
  if (key !== null) return key;
  const [kind, name] = [peer.slice(0, peer.indexOf(":")), peer.slice(peer.indexOf(":") + 1)];
  if (kind === "uid") return `user ${name}`;
  if (kind === "relay") return name === "" ? "by a relay" : `${name}, by a relay`;
  return name === "127.0.0.1" || name === "::1" ? "this machine" : name;
}

export function modelWords({ state, progress }) {
  return state === "loading" ? `being loaded, ${Math.round(progress * 100)}%` : (MODEL_STATES[state] ?? state);
}

/** By the API's own names: who has sent a batch knows them from there. */
export function batchWords(batch) {
  const { endpoint, status, total, completed, failed } = batch;
  const state = `${whoWords(batch)}, ${endpoint}, ${status.replace("_", " ")}`;
  return total === 0 ? state : `${state}, ${count(completed + failed)} of ${count(total)}`;
}

export function milliseconds(value) {
  return value === null ? "–" : `${Math.round(value)} ms`;
}

export function count(value) {
  return value.toLocaleString("en");
}

/** Why there are no events. */
export function lostWords(error) {
  if (error?.status === 403) {
    return "The box is for operators only: open this page on the server's own machine, or, where it has API keys, use one of the class operator.";
  }
  if (error?.status === 401) return "The server asks for an API key.";
  if (error?.status) return error.message;
  return "The connection to the server is lost. It is tried again by itself.";
}
