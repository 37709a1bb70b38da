// A client of one MCP server, over streamable HTTP. Whatever a server sends is a stranger's, and bounded.

import { events, wholeText } from "./stream.js";

const VERSIONS = ["2025-11-25", "2025-06-18", "2025-03-26"];
const CLIENT = { name: "umaserve page", version: "1" };
/** How long a server may take to say what it has, and to run a tool. */
const ANSWER_MS = 15_000;
const CALL_MS = 300_000;
const MOST_TOOLS = 128;
const METHOD_NOT_FOUND = -32601;

/** `key()` is what the server asks for, or undefined. */
export function mcpClient(address, key) {
  let opening = null;
  let lastId = 0;

  /** `session` is {id, version} once the handshake says so. */
  function headersOf(session) {
    const headers = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
    if (session) headers["MCP-Protocol-Version"] = session.version;
    if (session?.id) headers["Mcp-Session-Id"] = session.id;
    if (key()) headers.Authorization = `Bearer ${key()}`;
    return headers;
  }

  /** Sends a message, and returns the response of HTTP. */
  async function post(message, session, signal) {
    const headers = headersOf(session);
    const body = JSON.stringify({ jsonrpc: "2.0", ...message });
    try {
      return await fetch(address, { method: "POST", headers, body, signal, credentials: "omit", cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      throw new Error(`It can't be reached, or doesn't let pages of ${location.origin} read its replies (CORS). The browser says: ${error.message}`);
    }
  }

  /** The response to a request in the reply to it. A server may ask and tell something before. */
  async function responseIn(reply, id, session) {
    if (!reply.ok) throw new Error(await refusal(reply));
    const isStream = reply.headers.get("Content-Type")?.startsWith("text/event-stream");
    const messages = isStream ? events(reply.body) : [await wholeText(reply.body)];
    for await (const text of messages) {
      const message = parsed(text);
      if (message.method === undefined && message.id === id) return message;
      if (message.method !== undefined && message.id !== undefined) answer(message, session);
    }
    throw new Error("It ended its reply without an answer.");
  }

  /** This client does nothing for a server but say that it is there. */
  function answer({ id, method }, session) {
    const refused = { error: { code: METHOD_NOT_FOUND, message: `this client has no ${method}` } };
    post({ id, ...(method === "ping" ? { result: {} } : refused) }, session).catch(() => {});
  }

  async function exchange(method, params, session, ms, signal) {
    const id = (lastId += 1);
    const late = AbortSignal.timeout(ms);
    const over = AbortSignal.any([late, ...(signal ? [signal] : [])]);
    try {
      const reply = await post({ id, method, params }, session, over);
      if (reply.headers.get("Mcp-Session-Id")) session = { ...session, id: reply.headers.get("Mcp-Session-Id") };
      if (reply.status === 404 && session?.id && method !== "initialize") return { isGone: true };
      const { result, error } = await responseIn(reply, id, session);
      if (error) throw new Error(String(error.message ?? "It refuses this."));
      return { result: result ?? {}, session };
    } catch (error) {
      if (!over.aborted) throw error;
      if (session) post({ method: "notifications/cancelled", params: { requestId: id } }, session).catch(() => {});
      if (signal?.aborted) throw signal.reason;
      throw new Error(`It did not answer within ${ms / 1000} s.`);
    }
  }

  async function open() {
    const params = { protocolVersion: VERSIONS[0], capabilities: {}, clientInfo: CLIENT };
    const { result, session } = await exchange("initialize", params, undefined, ANSWER_MS);
    if (!VERSIONS.includes(result.protocolVersion)) throw new Error("It speaks no version of the protocol that this page knows.");
    const opened = { ...session, version: result.protocolVersion };
    await post({ method: "notifications/initialized" }, opened, AbortSignal.timeout(ANSWER_MS));
    return opened;
  }

  function session() {
    opening ??= open().catch((error) => {
      opening = null;
      throw error;
    });
    return opening;
  }

  /** The result of a request. A server that has forgotten the session gets another handshake. */
  async function request(method, params, ms, signal) {
    const answered = await exchange(method, params, await session(), ms, signal);
    if (!answered.isGone) return answered.result;
    opening = null;
    const again = await exchange(method, params, await session(), ms, signal);
    if (again.isGone) throw new Error("It has no such address.");
    return again.result;
  }

  return {
    /** Its tools, as it describes them. */
    async tools() {
      const all = [];
      let cursor;
      do {
        const { tools, nextCursor } = await request("tools/list", cursor === undefined ? {} : { cursor }, ANSWER_MS);
        if (!Array.isArray(tools)) throw new Error("It lists no tools.");
        all.push(...tools.filter((tool) => typeof tool?.name === "string" && tool.name));
        cursor = nextCursor;
      } while (cursor !== undefined && cursor !== null && all.length < MOST_TOOLS);
      return all.slice(0, MOST_TOOLS);
    },

    /** Tells a server that has made a session that nobody needs it any more, also where the page is left. */
    async close() {
      const opened = await opening?.catch(() => null);
      opening = null;
      if (opened?.id) fetch(address, { method: "DELETE", headers: headersOf(opened), credentials: "omit", keepalive: true }).catch(() => {});
    },

    /** The result of a call; `signal` ends it, here and there. */
    call: (name, args, signal) => request("tools/call", { name, arguments: args }, CALL_MS, signal),
  };
}

function parsed(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    throw new Error("Its reply is no message of the protocol.");
  }
}

/** Why a reply is an error, in its own words where it has some. */
async function refusal(reply) {
  if (reply.status === 401 || reply.status === 403) return `It refuses this page (status ${reply.status}).`;
  const text = await wholeText(reply.body).catch(() => "");
  const said = /^\s*\{/.test(text) && Object(parsed(text)).error?.message;
  return said ? String(said) : `It answers with status ${reply.status}.`;
}
