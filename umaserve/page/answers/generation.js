// One generation over /generate: starts it, steers it, and goes on with it by itself when its connection is lost.

const RETRY_MS = [300, 1000, 2000, 4000, 8000];
/** The daemon keeps what was lost for a minute, unless it is told otherwise. */
const GIVE_UP_MS = 60_000;
/** A stream that is silent for so long may have lost its connection without a word: a new one takes it over. */
const SILENT_MS = 15_000;
/** Changes of one moment go together: a slider moves faster than anybody reads. */
const TOGETHER_MS = 30;

/**
 * Starts one by its `first` message, config or resume, to be steered by pause(), resume(), modify(parameters) and stop().
 * `on` has what is called meanwhile:
 *   accepted(message), status(message), token(message): the contract's messages init, status and token;
 *   steered("pause" | "resume" | "modify", parameters): it holds from the next token on;
 *   refused(message): a change was refused, the generation continues;
 *   lost(), found(): the connection was lost, and is there again;
 *   done(completion) or failed(error): the end, once.
 */
export function generate(api, first, on) {
  let socket = null;
  let { request_id: id = null, position = 0 } = first;
  let [ended, stopped, paused] = [false, false, false];
  let [lostAt, tries] = [0, 0];
  let [retry, silence] = [0, 0];
  /** Changes that the daemon has not acknowledged yet, and those that it is to be sent. */
  const modifying = [];
  let wanted = null;

  function control(action, fields) {
    const isOpen = socket?.readyState === WebSocket.OPEN;
    if (isOpen) socket.send(JSON.stringify({ type: "control", action, ...fields }));
    return isOpen;
  }

  function sendModify() {
    if (ended || wanted === null || id === null || !control("modify", { parameters: wanted })) return;
    modifying.push(wanted);
    wanted = null;
  }

  function expectMore() {
    clearTimeout(silence);
    if (!paused) silence = setTimeout(reconnect, SILENT_MS);
  }

  function connect(message) {
    const opened = api.socket("/generate");
    socket = opened;
    opened.onopen = () => opened.send(JSON.stringify(message));
    opened.onmessage = ({ data }) => opened === socket && receive(JSON.parse(data));
    opened.onclose = () => opened === socket && !ended && reconnect();
  }

  function reconnect() {
    clearTimeout(silence);
    const silent = socket;
    socket = null;
    silent.close();
    if (lostAt === 0) {
      lostAt = Date.now();
      on.lost();
    }
    if (stopped) end(() => on.done({ finish_reason: "cancelled" }));
    else if (id === null) end(() => on.failed({ error: "unreachable" }));
    else if (Date.now() - lostAt > GIVE_UP_MS) end(() => on.failed({ error: "lost" }));
    else {
      const again = () => connect({ type: "resume", request_id: id, position });
      retry = setTimeout(again, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]);
      tries += 1;
    }
  }

  function receive(message) {
    const { type } = message;
    if (type === "init") {
      id = message.request_id;
      on.accepted(message);
      sendModify();
    } else if (type === "status") status(message);
    else if (type === "error") error(message);
    else if (type === "completion") end(() => on.done(stopped ? { ...message, finish_reason: "cancelled" } : message));
    // There is an empty one before the end, without a position.
    else if (type === "token" && message.position !== undefined) {
      position = message.position + 1;
      expectMore();
      on.token(message);
    }
  }

  function status(message) {
    const { operation } = message;
    if (operation === "resume" && message.request_id !== undefined) {
      lostAt = tries = 0;
      // What was asked for on the old connection may or may not have arrived: ask again.
      const unsure = Object.assign({}, ...modifying.splice(0), wanted);
      wanted = Object.keys(unsure).length > 0 ? unsure : null;
      sendModify();
      on.found();
      expectMore();
    } else if (operation === "modify") on.steered(operation, modifying.shift() ?? {});
    else if (operation === "pause" || operation === "resume") {
      paused = operation === "pause";
      expectMore();
      on.steered(operation);
    } else on.status(message);
  }

  function error(message) {
    if (modifying.length > 0 && message.message.startsWith("parameters")) {
      modifying.shift();
      on.refused(message);
    } else {
      if (message.recovery_action === "authenticate") api.refused();
      end(() => on.failed(message));
    }
  }

  function end(tell) {
    if (ended) return;
    ended = true;
    clearTimeout(retry);
    clearTimeout(silence);
    socket?.close();
    tell();
  }

  connect(first);
  return {
    pause: () => control("pause"),
    resume: () => control("resume"),
    modify(parameters) {
      if (Object.keys(parameters).length === 0) return;
      if (wanted === null) setTimeout(sendModify, TOGETHER_MS);
      wanted = { ...wanted, ...parameters };
    },
    /** Ends it; where it has no connection, at once. */
    stop() {
      stopped = true;
      if (!control("stop")) end(() => on.done({ finish_reason: "cancelled" }));
    },
  };
}
