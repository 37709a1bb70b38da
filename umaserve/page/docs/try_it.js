// Sends a request as one has written it, and shows what comes back, as it comes.

import { fill, h } from "../dom.js";

const SHOWN_CHARS = 500_000;
/** What the browser adds to each answer, and nobody asks for. */
const DULL = new Set(["date", "connection", "keep-alive", "transfer-encoding", "x-accel-buffering"]);

/** `body` is a request's [content type, media type object], `message` the schema of what a WebSocket is sent. */
export function tryIt({ method, path, parameters, body, message }, reader, app) {
  const { api } = app;
  const fields = message ? [] : parameters.map((each) => ({ ...each, input: input(each.required, (each.name === "model" && app.store.state.models[0]?.id) || "") }));
  const isForm = body?.[0] === "multipart/form-data";
  const form = isForm ? formFields(reader.whole(body[1].schema)) : [];
  const starts = message ? reader.examples({ schema: message }) : body && !isForm ? reader.examples(body[1]) : [];
  const written = (value) => JSON.stringify(value, null, 2);
  const area = h("textarea", { rows: 10, spellcheck: false, dir: "ltr", value: written(starts[0]?.[1]) ?? "" });
  const choose = h("select", { onchange: () => (area.value = written(starts[choose.selectedIndex][1])) }, starts.map(([name]) => h("option", {}, name)));
  const send = h("button.primary", { type: "submit" }, "Send");
  const stop = h("button", { disabled: true, onclick: () => ending?.() }, message ? "Close" : "Stop");
  const status = h("p.status", { role: "status" });
  const headers = h("dl.headers");
  const shown = h("pre", { tabIndex: 0, role: "group", "aria-label": "Body of the response", hidden: true });
  const media = h("div");
  let ending = null;
  let room = 0;
  let socket = null;

  function begin(end) {
    ending = end;
    stop.disabled = false;
    status.textContent = "Sent, waiting…";
    fill(headers);
    fill(media);
    shown.textContent = "";
    shown.hidden = false;
    room = SHOWN_CHARS;
  }

  function over() {
    if (document.activeElement === stop) send.focus();
    stop.disabled = true;
  }

  function write(text) {
    shown.append(text.slice(0, room));
    room -= Math.min(room, text.length);
    shown.scrollTop = shown.scrollHeight;
  }

  async function request() {
    if (!stop.disabled) return;
    const controller = new AbortController();
    begin(() => controller.abort());
    const of = (place) => fields.filter((each) => each.in === place && each.input.value).map(({ name, input: { value } }) => [name, value]);
    const filled = of("path").reduce((at, [name, value]) => at.replace(`{${name}}`, encodeURIComponent(value)), path);
    const query = new URLSearchParams(of("query")).toString();
    const sent = { method: method.toUpperCase(), headers: Object.fromEntries(of("header")), signal: controller.signal };
    if (isForm) sent.body = formData(form);
    else if (body) Object.assign(sent, { body: area.value, headers: { ...sent.headers, "Content-Type": body[0] } });
    try {
      const response = await api.request(query ? `${filled}?${query}` : filled, sent);
      const told = [...response.headers].filter(([name]) => !DULL.has(name));
      status.textContent = `${response.status} ${response.statusText}`;
      fill(headers, told.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
      await show(response);
    } catch (error) {
      status.textContent = controller.signal.aborted ? `${status.textContent} (stopped)` : error.message;
    }
    over();
  }

  async function show(response) {
    const type = response.headers.get("content-type") ?? "";
    if (type.startsWith("audio/")) {
      shown.hidden = true;
      return fill(media, h("audio", { controls: true, src: URL.createObjectURL(await response.blob()), "aria-label": "The response" }));
    }
    const reading = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reading?.read(); part && !part.done; part = await reading.read()) write(part.value);
    if (type.startsWith("application/json") && room > 0) shown.textContent = changed(shown.textContent, (told) => told, 2);
    return undefined;
  }

  /** One connection for all messages, until an end closes it. */
  function talk() {
    if (!stop.disabled) return socket.readyState === WebSocket.OPEN && socket.send(area.value);
    socket = api.socket(path);
    begin(() => socket.close());
    socket.onopen = () => {
      status.textContent = "Connected: what you send now goes over the same connection.";
      socket.send(api.key ? changed(area.value, (told) => ({ ...told, auth: api.key })) : area.value);
    };
    socket.onmessage = ({ data }) => write(`${data}\n`);
    socket.onclose = ({ code, reason }) => {
      status.textContent = `Closed: ${code} ${reason}`;
      over();
    };
    return undefined;
  }

  return h("form.try", { onsubmit: message ? talk : request },
    [...fields, ...form].map(({ name, input: field, required }) => h("label", {}, required ? `${name} (required)` : name, field)),
    starts.length > 1 && h("label", {}, "Example", choose),
    starts.length > 0 && h("label", {}, message ? "Message" : "Body", area),
    h("div.row", {}, send, stop), status, headers, shown, media);
}

function input(required, value = "", type = "text") {
  return h("input", { type, autocomplete: "off", spellcheck: false, required, value });
}

function formFields({ properties, required: wanted }) {
  return Object.entries(properties).map(([name, schema]) => {
    const required = wanted.includes(name);
    return { name, required, input: input(required, "", "contentMediaType" in schema ? "file" : "text") };
  });
}

function formData(form) {
  const data = new FormData();
  for (const { name, input: { files, value } } of form) if (value) data.append(name, files?.[0] ?? value);
  return data;
}

/** `text` with something done to the JSON that it is; as it is where it is none. */
function changed(text, change, indent) {
  try {
    return JSON.stringify(change(JSON.parse(text)), null, indent);
  } catch {
    return text;
  }
}
