// A conversation by voice: the turns of the chat that is shown, over a session. What was said becomes a question, with
// its sound where the model hears; the answer is shown and heard as it comes, and whoever talks interrupts it.

import { path } from "../answers/conversation.js";
import { heardSound } from "../voice/heard.js";
import { itemsOf } from "../voice/items.js";
import { fromPcm } from "../voice/pcm.js";
import { Player } from "../voice/player.js";
import { openSession, RATE } from "../voice/session.js";
import { wav } from "../voice/wav.js";
import { prepared, takes } from "./attach_media.js";

const ENDS = { completed: "stop", incomplete: "length", cancelled: "cancelled" };
const LOST = "The connection was lost. Press the button to try again.";
const NO_WORD = "No word was heard. Is it the right microphone? Say it again.";
const LOOK_MS = 100;

/** `changed()` is called where there is something new to show, `failed(words)` where it can't go on as it is. */
export function talk({ app, store, actions, speech, changed, failed }) {
  const { state } = store;
  let session = null;
  /** Counts the sessions: what an earlier one still loads is of no use. */
  let count = 0;
  let ready = false;
  /** The conversation that the session has, and what it knows of that: where the chat has another one, it begins anew. */
  let [conversation, known, set] = [null, "", ""];
  /** What follows an answer waits until that is over. */
  let over = Promise.resolve();
  /** Answers that are not over. */
  let held = 0;
  let sound = heardSound(RATE);
  let [isTalking, isOver] = [false, false];
  let endedAt = 0;
  /** What was said and has no answer yet: {item, parts}. */
  let question = null;
  /** What was said before and has got no answer, since somebody went on: items, and their transcripts so far. */
  let [passed, before] = [new Set(), []];
  /** The answer that is being given: {id, item, answer, player, ms, done, begun}. */
  let reply = null;
  /** The spoken answer that somebody has interrupted, until the session knows: {item, ms, answer}. */
  let cut = null;

  function modelOf({ model }) {
    const { models } = app.store.state;
    return models.find(({ id }) => id === model) ?? models[0];
  }

  const hears = () => takes(modelOf(conversation), "audio");

  function keyOf(one) {
    const model = modelOf(one);
    return JSON.stringify([one.id, path(one).at(-1)?.id, model?.id, takes(model, "audio"), state.voiced]);
  }

  function settingsOf({ system: instructions, settings: { temperature, max_tokens: most } }) {
    return { instructions, temperature, max_output_tokens: most || "inf" };
  }

  async function open() {
    close();
    ({ conversation } = state);
    known = keyOf(conversation);
    const mine = (count += 1);
    const turns = path(conversation);
    try {
      const items = await itemsOf(turns, await actions.contents(turns), RATE);
      if (isOver || mine !== count) return;
      const settings = settingsOf(conversation);
      const about = { model: modelOf(conversation)?.id ?? "default", settings, spoken: state.voiced, writes: !hears(), items };
      set = JSON.stringify(settings);
      const on = { ready: () => ((ready = true), changed()), event: take, lost: () => (close(), failed(LOST)) };
      session = openSession(app.api, about, on);
    } catch (error) {
      failed(error.message);
    }
  }

  function close() {
    session?.close();
    if (reply) end("cancelled");
    [session, ready, question, cut, isTalking] = [null, false, null, null, false];
    [passed, before] = [new Set(), []];
    sound = heardSound(RATE);
  }

  const EVENTS = {
    "input_audio_buffer.speech_started": ({ audio_start_ms: ms }) => {
      isTalking = true;
      speech.stop();
      sound.begin(ms);
      interrupt();
    },
    "input_audio_buffer.speech_stopped": ({ audio_end_ms: ms, item_id: item }) => {
      isTalking = false;
      endedAt = performance.now();
      if (question) passed.add(question.item);
      question = { item, parts: sound.take(ms) };
    },
    "conversation.item.input_audio_transcription.completed": ({ item_id: item, transcript }) => {
      if (passed.delete(item)) before.push(transcript);
      if (question?.item !== item || hears()) return;
      const text = [...before.splice(0), transcript].filter(Boolean).join(" ");
      if (text) return begin(text);
      session.send({ type: "response.cancel" });
      session.send({ type: "conversation.item.delete", item_id: item });
      question = null;
      failed(NO_WORD);
    },
    "response.created": ({ response }) => {
      if (!question) return;
      question.id = response.id;
      if (hears()) begin("");
    },
    "response.output_item.added": ({ response_id: id, item }) => {
      if (reply?.id === id) reply.item = item.id;
    },
    "response.output_audio_transcript.delta": write,
    "response.output_text.delta": write,
    "response.output_audio.delta": ({ response_id: id, delta }) => {
      if (reply?.id !== id) return;
      const samples = fromPcm(delta);
      reply.player ??= new Player(RATE);
      reply.player.play(samples);
      // As the session counts it.
      reply.ms += Math.floor((1000 * samples.length) / RATE);
    },
    "response.done": ({ response }) => {
      if (cut) truncate();
      if (reply?.id === response.id) finish(response);
      else if (question?.id === response.id) giveUp(response);
    },
    "conversation.item.retrieved": ({ item }) => {
      if (cut?.item !== item.id) return;
      const { answer } = cut;
      cut = null;
      answer.then((one) => {
        if (!one) return;
        store.update(() => (one.answer.text = item.content[0]?.transcript ?? ""));
        one.keep();
      });
    },
    error: ({ error }) => failed(error.message),
  };

  function take(event) {
    EVENTS[event.type]?.(event);
    changed();
  }

  /** What was said is a question of the chat's now, and its answer is held. */
  function begin(text) {
    const { id, parts } = question;
    question = null;
    const at = new Date().toTimeString().slice(0, 8).replaceAll(":", ".");
    const file = new File([wav(parts, RATE)], `Recording ${at}`, { type: "audio/wav" });
    const media = text ? Promise.resolve([]) : prepared(file).then((medium) => [medium]);
    held += 1;
    const answer = Promise.all([media, over]).then(([all]) => actions.converse(text, all, stop));
    reply = { id, item: "", answer, player: null, ms: 0, done: null, begun: false };
  }

  function write({ response_id: id, delta }) {
    if (reply?.id !== id) return;
    const firstMs = performance.now() - endedAt;
    const isFirst = !reply.begun;
    reply.begun = true;
    reply.answer.then((one) => one?.change(() => {
      one.answer.text += delta;
      if (isFirst) one.answer.stats.firstMs = firstMs;
    }));
  }

  /** All of the answer is there; it is over once it has been heard. */
  function finish({ status, status_details: details, usage }) {
    reply.done = status;
    const firstMs = performance.now() - endedAt;
    reply.answer.then((one) => one?.change(() => {
      const { answer } = one;
      answer.stats.firstMs ??= firstMs;
      if (details?.error) answer.error = details.error.message;
      if (usage) Object.assign(answer.stats, { tokens: usage.output_tokens, prompt: usage.input_tokens, cached: usage.input_token_details.cached_tokens });
      answer.model = modelOf(conversation)?.id;
    }));
  }

  /** An answer that failed before it began. */
  function giveUp({ status_details: details }) {
    passed.add(question.item);
    question = null;
    if (details?.error) failed(details.error.message);
  }

  function end(how) {
    const { answer, player } = reply;
    player?.close();
    reply = null;
    over = answer.then((one) => {
      held -= 1;
      if (!one) return;
      one.answer.end = how;
      one.over();
      known = keyOf(conversation);
    });
  }

  /** Ends what is heard. The session is told how much that was, so that the model remembers no more. */
  function interrupt() {
    if (!reply) return;
    const { item, player, answer, ms, done } = reply;
    if (item && state.voiced) cut = { item, ms: Math.min(ms, Math.floor(1000 * (player?.heard ?? 0))), answer };
    end("cancelled");
    if (done && cut) truncate();
  }

  function truncate() {
    if (cut.isSent) return;
    cut.isSent = true;
    session.send({ type: "conversation.item.truncate", item_id: cut.item, content_index: 0, audio_end_ms: cut.ms });
    session.send({ type: "conversation.item.retrieve", item_id: cut.item });
  }

  /** Somebody has stopped the answer. */
  function stop() {
    if (!reply) return;
    if (!reply.done) session.send({ type: "response.cancel" });
    interrupt();
  }

  const looking = setInterval(() => {
    if (reply?.done && !(reply.player?.left > 0)) end(ENDS[reply.done] ?? "stop");
    const isFree = held === 0 && state.run === null && !question && !isTalking;
    if (session && isFree && known !== keyOf(state.conversation)) open();
    else if (ready && set !== JSON.stringify(settingsOf(conversation))) {
      session.set(settingsOf(conversation));
      set = JSON.stringify(settingsOf(conversation));
    }
    changed();
  }, LOOK_MS);

  open();
  return {
    open,
    append(samples) {
      // While an answer is written elsewhere, nothing is asked.
      if (!ready || (state.run !== null && !reply)) return;
      sound.push(samples);
      session.append(samples);
    },
    close() {
      isOver = true;
      clearInterval(looking);
      if (reply) stop();
      close();
    },
    get phase() {
      if (!ready) return "opening";
      if (isTalking) return "listening";
      if (reply) return reply.player?.left > 0 ? "speaking" : "thinking";
      if (question) return "thinking";
      return state.run === null ? "idle" : "elsewhere";
    },
  };
}
