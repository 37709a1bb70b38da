// A session over /v1/realtime: its connection, and what is said over it.

import { toPcm } from "./pcm.js";

export const RATE = 24_000;
const FORMAT = { type: "audio/pcm", rate: RATE };
/** What waits to be sent is dropped from here on: a line that is too slow is of no use for talking. */
const MOST_WAITING = 2 ** 20;

/**
 * Opens one for `about`: {model, settings, spoken, writes, items}; `settings` are fields of the session's, `writes` says
 * that what is said has to be written down. `on.ready()` is called once it is open, `on.event(event)` with each event of the
 * server's, `on.lost()` when the connection has ended by itself.
 */
export function openSession(api, about, on) {
  const socket = api.socket(`/v1/realtime?model=${encodeURIComponent(about.model)}`, ["realtime", "openai-insecure-api-key."]);
  let closed = false;

  function send(event) {
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(event));
  }

  const set = (settings) => send({ type: "session.update", session: { type: "realtime", ...settings } });

  function begin() {
    const input = { format: FORMAT, turn_detection: { type: "server_vad" }, transcription: about.writes ? {} : null };
    const audio = { input, ...(about.spoken && { output: { format: FORMAT } }) };
    set({ ...about.settings, output_modalities: [about.spoken ? "audio" : "text"], audio });
    for (const item of about.items) send({ type: "conversation.item.create", item });
    on.ready();
  }

  socket.onmessage = ({ data }) => {
    if (closed) return;
    const event = JSON.parse(data);
    if (event.type === "session.created") begin();
    else on.event(event);
  };
  socket.onclose = () => closed || on.lost();

  return {
    send,
    set,
    append(samples) {
      if (socket.bufferedAmount < MOST_WAITING) send({ type: "input_audio_buffer.append", audio: toPcm(samples) });
    },
    close() {
      closed = true;
      socket.close();
    },
  };
}
