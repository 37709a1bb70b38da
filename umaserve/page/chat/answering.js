// Has answers written, one at a time, and what they call run: then another answer follows, to the results.

import { addTurn, upTo } from "../answers/conversation.js";
import { errorWords } from "../words.js";

/** Which answer this tab writes, for when it is loaded again: another tab's answers are left to that. */
const WRITING = "umaserve.writing";

/**
 * `save(conversation)` keeps it, `saveLater(conversation)` in a while. `ended(conversation)` is called once nothing
 * follows an answer. `loadServers()` promises the tool servers.
 */
export function answering({ store, api, library, tab, tell, save, saveLater, ended, loadServers }) {
  const { state, update } = store;
  let generation = null;
  /** Ends what comes before and after the generation: reading media, asking servers, calls. */
  let stopping = null;
  /** What follows the running answer, once it has ended. */
  let after = null;
  /** The call that is asked for: {call, decide}. */
  let asked = null;

  const change = (conversation) => (f) => update(() => {
    if (state.run) f(state.run);
    saveLater(conversation);
  });

  const tooling = () => Promise.all([import("../tools/calls.js"), loadServers()]);

  /** What an answer may call: null where nothing is switched on. */
  async function toolsFor(conversation, answer) {
    const all = Object.values(conversation.tools ?? {}).flatMap(Object.values);
    if (all.every((how) => how === "never")) return null;
    const [{ offered }, servers] = await tooling();
    const there = await offered(conversation, answer, servers);
    if (there.problems.length > 0) tell(there.problems.join(" "));
    return there;
  }

  /** Notes whose tools have been called, while that is known. */
  function nameTools(calls, there) {
    for (const call of calls ?? []) {
      const { address, tool } = there?.find(call) ?? {};
      if (address) Object.assign(call, { address, tool: tool.name });
    }
  }

  /** Goes on with `answer`; with the request that was made for it, where it has one. */
  async function run(conversation, answer) {
    if (state.run) return;
    const { probabilities } = state;
    const again = answer.request !== undefined;
    const before = answer.request?.paused ? "paused" : "waiting";
    const begins = again ? { phase: "lost", before, note: "Trying to go on…" } : { phase: "waiting", note: "" };
    update(() => (state.run = { conversation, answer, from: answer.text.length, ...begins }));
    tab.setItem(WRITING, JSON.stringify([conversation.id, answer.id]));
    const { signal } = (stopping = new AbortController());
    let [running, contents, tools] = [];
    try {
      running = await import("../answers/running.js").catch(() => {
        throw new Error(errorWords({ error: "unreachable" }));
      });
      const needed = [library.contents(upTo(conversation, answer)), toolsFor(conversation, answer)];
      [contents, tools] = again ? [] : await until(signal, Promise.all(needed));
      signal.throwIfAborted();
    } catch (error) {
      if (signal.aborted) answer.end = "cancelled";
      else answer.error = error.message;
      return over(conversation, answer);
    }
    const settings = { ...conversation.settings };
    generation = running.runAnswer({
      ...{ api, conversation, answer, contents, settings, probabilities, tools: tools?.functions },
      ended: () => {
        nameTools(answer.calls, tools);
        over(conversation, answer);
      },
      change: (f) => {
        const known = answer.request?.id;
        change(conversation)(f);
        // From here on another load of the page can go on with it.
        if (answer.request?.id !== known) save(conversation);
      },
    });
    return undefined;
  }

  /** Ends the running answer, also one whose media are still being read, or whose calls run. */
  function stop() {
    if (generation) generation.stop();
    else stopping?.abort();
  }

  function over(conversation, answer) {
    generation = stopping = null;
    delete answer.request;
    tab.removeItem(WRITING);
    conversation.changed = Date.now();
    update(() => (state.run = null));
    save(conversation);
    const next = after;
    after = null;
    if (next) next();
    else if (answer.calls && answer.end !== "cancelled" && !answer.error) callTools(conversation, answer);
    else ended(conversation);
  }

  /** Runs what an answer calls, and has the results answered. */
  async function callTools(conversation, answer) {
    const { signal } = (stopping = new AbortController());
    update(() => (state.run = { conversation, answer, from: answer.text.length, phase: "calling", note: "" }));
    const asking = (question) => (asked = question);
    let done = false;
    try {
      const [{ runCalls }, servers] = await tooling();
      const chosen = (conversation.tools ??= {});
      await runCalls(answer.calls, { servers, chosen, asking, change: change(conversation), signal });
      done = true;
    } catch (error) {
      if (!signal.aborted) tell(`The calls could not be run: ${error.message}`);
    }
    asked = stopping = null;
    update(() => (state.run = null));
    save(conversation);
    const next = after;
    after = null;
    if (next) next();
    else if (done) answerTo(conversation, answer.id);
  }

  function answerTo(conversation, parent, fields = {}) {
    const blank = { thoughts: "", tokens: [], marks: [] };
    let answer;
    update(() => (answer = addTurn(conversation, parent, "assistant", { ...blank, ...fields })));
    run(conversation, answer);
    save(conversation);
  }

  return {
    answerTo,
    stop,
    pause: () => generation?.pause?.(),
    resume: () => generation?.resume?.(),
    modify: (parameters) => generation?.modify?.(parameters),
    /**
     * An answer that is written elsewhere, by the voice mode, where `stop()` ends it: {answer, change, over, keep}.
     * `over()` says that it is whole, `keep()` that it has been changed after that.
     */
    hold(conversation, parent, stop) {
      let answer;
      const fields = { thoughts: "", tokens: [], marks: [], stats: { tokens: 0 }, settings: { ...conversation.settings } };
      update(() => {
        answer = addTurn(conversation, parent, "assistant", fields);
        state.run = { conversation, answer, from: 0, phase: "talking", note: "" };
      });
      generation = { stop };
      const keep = () => update(() => save(conversation));
      keep();
      return { answer, change: change(conversation), over: () => over(conversation, answer), keep };
    },
    /** Its id is another now. */
    renamed(conversation) {
      const { answer } = state.run?.conversation === conversation ? state.run : {};
      if (answer && tab.getItem(WRITING)) tab.setItem(WRITING, JSON.stringify([conversation.id, answer.id]));
    },
    /** Whether a call that is asked for may run: "once", "always", "refuse" or "never". */
    decide: (call, said) => call === asked?.call && asked.decide(said),
    /** Does it now, or when the running answer has been stopped. */
    instead(does) {
      if (!state.run) return does();
      after = does;
      stop();
    },
    goOn(conversation, answer) {
      if (state.run) return;
      delete answer.request;
      if (answer.calls) callTools(conversation, answer);
      else run(conversation, answer);
    },
    /** Goes on with the answer that this tab was writing before it was loaded again. */
    async takeUp() {
      const [id, answerId] = JSON.parse(tab.getItem(WRITING) ?? "[]");
      const conversation = id && (await library.get(id));
      const answer = conversation?.turns[answerId];
      if (answer?.request?.id) run(conversation, answer);
      else tab.removeItem(WRITING);
    },
  };
}

/** What `promise` promises, unless `signal` comes first. */
function until(signal, promise) {
  signal.throwIfAborted();
  return Promise.race([promise, new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
  })]);
}
