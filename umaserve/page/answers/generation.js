// One generation over /generate: starts it, steers it, and goes on with it by itself when its connection is lost.

const RETRY_MS = [300, 1000, 2000, 4000, 8000];
/** The daemon keeps what was lost for a minute, unless it is told otherwise. */
const GIVE_UP_MS = 60_000;
/** A stream that is silent for so long may have lost its connection without a word: a new one takes it over. */
const SILENT_MS = 15_000;

/**
 * `on` has what is called meanwhile:
 *   accepted(message), status(message), token(message): the contract's messages init, status and token;
 *   steered("pause" | "resume" | "modify", parameters): it holds from the next token on;
 *   refused(message): a change was refused, the generation goes on;
 *   lost(), found(): the connection was lost, and is there again;
 *   done(completion) or failed(error): the end, once.
 */
export class Generation {
  #api;
  #config;
  #on;
  #socket = null;
  #id = null;
  #position = 0;
  #ended = false;
  #stopped = false;
  #lostAt = 0;
  #tries = 0;
  #timer = 0;
  #silence = 0;
  #paused = false;
  #modifying = [];
  #wanted = null;

  constructor(api, config, on) {
    this.#api = api;
    this.#config = config;
    this.#on = on;
    this.#connect({ type: "config", ...config });
  }

  pause() {
    this.#control({ action: "pause" });
  }

  resume() {
    this.#control({ action: "resume" });
  }

  /** Ends it; where it has no connection, at once. */
  stop() {
    this.#stopped = true;
    if (!this.#control({ action: "stop" })) this.#end(() => this.#on.done({ finish_reason: "cancelled" }));
  }

  /** Changes parameters. Those of one moment go together: a slider moves faster than anybody reads. */
  modify(parameters) {
    if (this.#wanted === null) setTimeout(() => this.#sendModify(), 30);
    this.#wanted = { ...this.#wanted, ...parameters };
  }

  #sendModify() {
    const parameters = this.#wanted;
    if (this.#ended || parameters === null || this.#id === null || !this.#isOpen()) return;
    this.#wanted = null;
    this.#modifying.push(parameters);
    this.#control({ action: "modify", parameters });
  }

  #isOpen() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  #control(message) {
    if (!this.#isOpen()) return false;
    this.#socket.send(JSON.stringify({ type: "control", ...message }));
    return true;
  }

  #expectMore() {
    clearTimeout(this.#silence);
    if (this.#paused) return;
    this.#silence = setTimeout(() => {
      const silent = this.#socket;
      this.#socket = null;
      silent?.close();
      this.#reconnect();
    }, SILENT_MS);
  }

  #connect(first) {
    const socket = this.#api.socket("/generate");
    this.#socket = socket;
    socket.onopen = () => socket.send(JSON.stringify(first));
    socket.onmessage = ({ data }) => socket === this.#socket && this.#receive(JSON.parse(data));
    socket.onclose = () => socket === this.#socket && !this.#ended && this.#reconnect();
  }

  #reconnect() {
    clearTimeout(this.#silence);
    if (this.#lostAt === 0) {
      this.#lostAt = Date.now();
      this.#on.lost();
    }
    const late = Date.now() - this.#lostAt > GIVE_UP_MS;
    if (this.#stopped) this.#end(() => this.#on.done({ finish_reason: "cancelled" }));
    else if (this.#id === null) this.#end(() => this.#on.failed({ error: "unreachable" }));
    else if (late) this.#end(() => this.#on.failed({ error: "lost" }));
    else {
      const wait = RETRY_MS[Math.min(this.#tries, RETRY_MS.length - 1)];
      this.#tries += 1;
      this.#timer = setTimeout(() => {
        this.#connect({ type: "resume", request_id: this.#id, position: this.#position });
      }, wait);
    }
  }

  #receive(message) {
    switch (message.type) {
      case "init":
        this.#id = message.request_id;
        this.#on.accepted(message);
        this.#sendModify();
        break;
      case "token":
        if (message.position === undefined) break; // The empty one before the end.
        this.#position = message.position + 1;
        this.#expectMore();
        this.#on.token(message);
        break;
      case "status":
        this.#status(message);
        break;
      case "completion":
        this.#end(() => this.#on.done(this.#stopped ? { ...message, finish_reason: "cancelled" } : message));
        break;
      case "error":
        this.#error(message);
        break;
    }
  }

  #status(message) {
    const { operation } = message;
    if (operation === "resume" && message.request_id !== undefined) {
      this.#lostAt = this.#tries = 0;
      // What was asked for on the old connection may or may not have arrived: ask again.
      this.#wanted = Object.assign({}, ...this.#modifying.splice(0), this.#wanted);
      if (Object.keys(this.#wanted).length === 0) this.#wanted = null;
      this.#sendModify();
      this.#on.found();
      this.#expectMore();
    } else if (operation === "modify") this.#on.steered(operation, this.#modifying.shift() ?? {});
    else if (operation === "pause" || operation === "resume") {
      this.#paused = operation === "pause";
      this.#expectMore();
      this.#on.steered(operation);
    } else this.#on.status(message);
  }

  #error(message) {
    if (this.#modifying.length > 0 && message.message.startsWith("parameters")) {
      this.#modifying.shift();
      this.#on.refused(message);
      return;
    }
    if (message.recovery_action === "authenticate") this.#api.refused();
    this.#end(() => this.#on.failed(message));
  }

  #end(tell) {
    if (this.#ended) return;
    this.#ended = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    this.#socket?.close();
    tell();
  }
}
