// The MCP servers of this page: those that the operator lists, and those that somebody has added in this browser.

import { mcpClient } from "./mcp.js";

const OWN = "umaserve.tool_servers";
const MOST_OWN = 32;
const MOST_OFFERED = 128;
const MOST_NAME = 64;
/** Characters of a result that the model gets. */
const MOST_RESULT = 16_384;

export function toolServers(api, storage) {
  let listing = null;
  const clients = new Map();

  addEventListener("pagehide", () => clients.forEach(({ client }) => client.close()));

  async function listed() {
    listing ??= api.json("/page/tool_servers.json").then((all) => all.map(absolute)).catch((error) => {
      listing = null;
      throw error;
    });
    return listing;
  }

  function own() {
    try {
      return JSON.parse(storage.getItem(OWN) ?? "[]").map(String);
    } catch {
      return [];
    }
  }

  /** What the page's policy lets it connect to: its own origin and what the operator lists, with all below a slash. */
  const allows = (operators, address) => new URL(address).origin === location.origin ||
    operators.some((each) => each === address || (each.endsWith("/") && address.startsWith(each)));

  function clientOf(address) {
    const ours = new URL(address).origin === location.origin;
    if (!clients.has(address)) clients.set(address, { client: mcpClient(address, () => (ours ? api.key : undefined)), tools: null });
    return clients.get(address);
  }

  /** The tools of a server: as it said them before, unless they are wanted `anew`. */
  async function tools(address, anew = false) {
    if (!allows(await listed(), address)) throw new Error(notAllowed(address));
    const known = clientOf(address);
    if (anew || known.tools === null) {
      known.tools = known.client.tools().catch((error) => {
        known.tools = null;
        throw error;
      });
    }
    return known.tools;
  }

  return {
    tools,

    /** All servers: {address, isOwn}. */
    async all() {
      const operators = await listed();
      const added = own().filter((address) => !operators.includes(address));
      return [...operators.map((address) => ({ address, isOwn: false })), ...added.map((address) => ({ address, isOwn: true }))];
    },

    /** Adds a server of somebody's own; throws where it can't be one, with what to do. */
    async add(text) {
      const address = checked(text);
      if (!allows(await listed(), address)) throw new Error(notAllowed(address));
      const others = own().filter((each) => each !== address);
      if (others.length >= MOST_OWN) throw new Error(`There are ${MOST_OWN} servers already. Remove one.`);
      storage.setItem(OWN, JSON.stringify([...others, address]));
    },

    remove(address) {
      clients.get(address)?.client.close();
      clients.delete(address);
      storage.setItem(OWN, JSON.stringify(own().filter((each) => each !== address)));
    },

    /**
     * The tools that are switched on in a conversation: `functions` as the model is told them, `find(call)` which of them
     * is called: {address, tool}, by these where the call has them, since names are given anew each time; `problems` are
     * words about servers that can't be asked, and so are left out.
     */
    async offered(chosen = {}) {
      const [named, problems] = [new Map(), []];
      for (const [address, on] of Object.entries(chosen)) {
        const wanted = (tool) => Object.hasOwn(on, tool.name) && on[tool.name] !== "never";
        if (Object.keys(on).length === 0) continue;
        try {
          for (const tool of (await tools(address)).filter(wanted)) named.set(nameOf(tool.name, named), { address, tool });
        } catch (error) {
          problems.push(`The tools of ${nameOfServer(address)} are left out. ${error.message}`);
        }
      }
      const offered = [...named].slice(0, MOST_OFFERED);
      if (named.size > MOST_OFFERED) problems.push(`Only the first ${MOST_OFFERED} of ${named.size} tools are offered.`);
      const functions = offered.map(([name, { tool }]) => ({
        type: "function",
        function: { name, description: String(tool.description ?? ""), parameters: Object(tool.inputSchema ?? { type: "object" }) },
      }));
      const isOf = (call) => ({ address, tool }) => address === call.address && tool.name === call.tool;
      const find = (call) => (call.address ? [...named.values()].find(isOf(call)) : named.get(call.name));
      return { functions, find, problems };
    },

    /** What a tool says, as text for the model: {text, failed}. Throws where `signal` ended it. */
    async call({ address, tool }, args, signal) {
      try {
        const result = await clientOf(address).client.call(tool.name, args, signal);
        return { text: shortened(told(result)), failed: result.isError === true };
      } catch (error) {
        if (signal.aborted) throw error;
        return { text: shortened(`The call failed: ${error.message}`), failed: true };
      }
    },
  };
}

function absolute(address) {
  return new URL(address, location.href).href;
}

/** How people are told of a server. */
export function nameOfServer(address) {
  const { origin, host, pathname } = new URL(address);
  return origin === location.origin && pathname === "/mcp" ? "this server" : `${host}${pathname}`;
}

function checked(text) {
  const url = URL.parse(text.trim(), location.href);
  const isPlain = url && ["http:", "https:"].includes(url.protocol) && !url.username && !url.password && !url.hash;
  if (!text.trim() || !isPlain) throw new Error("This is no address of a server. It begins with http:// or https://.");
  return url.href;
}

function notAllowed(address) {
  return `This page may not connect to ${address}. Whoever runs the server can allow it: --page-tool-servers ${address}`;
}

/** A name that no other one has, of characters that models are given in names. */
function nameOf(tool, taken) {
  const plain = tool.replace(/[^A-Za-z0-9_-]/g, "_").slice(0, MOST_NAME);
  let name = plain;
  for (let i = 2; taken.has(name); i += 1) name = `${plain.slice(0, MOST_NAME - 4)}_${i}`;
  return name;
}

function told({ content, structuredContent, isError }) {
  const parts = (Array.isArray(content) ? content : []).map((part) => {
    return part?.type === "text" ? String(part.text) : `[${part?.type}, which is not shown]`;
  });
  if (parts.length === 0 && structuredContent !== undefined) parts.push(JSON.stringify(structuredContent));
  return `${isError ? "The tool reports an error: " : ""}${parts.join("\n")}`;
}

function shortened(text) {
  const left = text.length - MOST_RESULT;
  return left <= 0 ? text : `${text.slice(0, MOST_RESULT)}\n[${left} more characters are left out]`;
}
