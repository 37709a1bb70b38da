"""The voice mode's side of a session, in a real browser: what it makes of the server's events, which a test writes."""

from __future__ import annotations

from typing import Any

import pytest
from browser import BROWSER, DRIVER, MISSING, Browser
from daemon import Daemon

pytestmark = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)

RUN = """
const [hears, events] = values;
const { newConversation } = await import("/page/answers/conversation.js");
const { createStore } = await import("/page/store.js");
const { talk } = await import("/page/chat/voice_talk.js");
const [sent, asked, failed, answers] = [[], [], [], []];
let opened = null;
const found = new Promise((resolve) => (opened = resolve));
const send = (data) => sent.push(JSON.parse(data));
const socket = { readyState: WebSocket.OPEN, bufferedAmount: 0, close() {}, send };
const models = [{ id: "small", architecture: { input_modalities: hears ? ["text", "audio"] : ["text"] } }];
const conversation = newConversation("small", "Be brief.", { temperature: 0.5, max_tokens: 0 });
const store = createStore({ conversation, run: null, voiced: true });
const app = { store: createStore({ models }), api: { socket: () => (opened(), socket) } };
async function converse(text, media) {
  const answer = { text: "", stats: {} };
  asked.push([text, media.map(({ kind, size }) => [kind, size])]);
  answers.push(answer);
  return { answer, change: (f) => f(), over() {}, keep() {} };
}
const actions = { contents: async () => new Map(), converse };
const told = { changed() {}, failed: (words) => failed.push(words) };
const talking = talk({ app, store, actions, speech: { stop() {} }, ...told });
await found;
for (const event of [{ type: "session.created" }, ...events]) {
  if (event.type === "hear") talking.append(new Float32Array(event.samples));
  else socket.onmessage({ data: JSON.stringify(event) });
  // What it has begun by that comes first.
  await new Promise((resolve) => setTimeout(resolve));
}
const { phase } = talking;
talking.close();
return { sent: sent.filter(({ type }) => !type.endsWith("append")), asked, failed, answers, phase };
"""
STARTED, STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
WRITTEN = "conversation.item.input_audio_transcription.completed"


def run(browser: Browser, daemon: Daemon, *events: dict[str, Any], hears: bool = False) -> dict[str, Any]:
    browser.open(daemon.http)
    found: dict[str, Any] = browser.module(RUN, hears, list(events))
    assert isinstance(found, dict), found
    return found


def said(item: str, response: str) -> list[dict[str, Any]]:
    """Somebody has said something, and a response is begun."""
    return [
        {"type": STARTED, "audio_start_ms": 100, "item_id": item},
        {"type": STOPPED, "audio_end_ms": 600, "item_id": item},
        {"type": "response.created", "response": {"id": response}},
    ]


def written(item: str, transcript: str) -> dict[str, Any]:
    return {"type": WRITTEN, "item_id": item, "transcript": transcript}


def done(response: str, status: str = "completed", **about: Any) -> dict[str, Any]:
    told = {"id": response, "status": status, "status_details": None, "usage": None, **about}
    return {"type": "response.done", "response": told}


def test_a_session_has_the_conversations_settings(browser: Browser, daemon: Daemon):
    found = run(browser, daemon)
    ((session,),) = [[message["session"] for message in found["sent"]]]
    assert (session["instructions"], session["temperature"], session["max_output_tokens"]) == ("Be brief.", 0.5, "inf")
    sound = {"type": "audio/pcm", "rate": 24000}
    assert session["audio"]["input"] == {
        "format": sound,
        "turn_detection": {"type": "server_vad"},
        "transcription": {},
    }
    assert (session["output_modalities"], session["audio"]["output"]) == (["audio"], {"format": sound})
    assert found["phase"] == "idle"


def test_a_model_that_hears_gets_the_sound_that_the_server_names(browser: Browser, daemon: Daemon):
    hear = {"type": "hear", "samples": 24_000}
    found = run(browser, daemon, hear, *said("i", "r"), hears=True)
    # Half a second, of 16 bits each, and a head.
    assert found["asked"] == [["", [["audio", 44 + 24_000]]]]
    assert found["phase"] == "thinking"


def test_what_was_said_before_goes_with_what_is_said_next(browser: Browser, daemon: Daemon):
    events = [
        *said("i", "r"),
        done("r", "cancelled"),
        written("i", "Tell me"),
        *said("j", "s"),
        written("j", "a joke."),
    ]
    assert run(browser, daemon, *events)["asked"] == [["Tell me a joke.", []]]


def test_no_word_is_no_question(browser: Browser, daemon: Daemon):
    found = run(browser, daemon, *said("i", "r"), written("i", ""), done("r", "cancelled"))
    assert (found["asked"], found["phase"]) == ([], "idle")
    assert found["failed"][0].startswith("No word was heard.")
    assert found["sent"][1:] == [
        {"type": "response.cancel"},
        {"type": "conversation.item.delete", "item_id": "i"},
    ]


@pytest.mark.parametrize("ended", [False, True])
def test_who_interrupts_leaves_what_was_heard(browser: Browser, daemon: Daemon, ended: bool):
    second = {"type": "response.output_audio.delta", "response_id": "r", "delta": "AAAA" * 16_000}
    answer = [
        {"type": "response.output_item.added", "response_id": "r", "item": {"id": "m"}},
        {"type": "response.output_audio_transcript.delta", "response_id": "r", "delta": "One two"},
        second,
    ]
    interrupted = {"type": STARTED, "audio_start_ms": 900, "item_id": "j"}
    late = {"type": "response.output_audio_transcript.delta", "response_id": "r", "delta": " three"}
    ends = [done("r"), interrupted] if ended else [interrupted, late, done("r", "cancelled")]
    retrieved = {"type": "conversation.item.retrieved", "item": {"id": "m", "content": [{"transcript": "One"}]}}
    found = run(browser, daemon, *said("i", "r"), written("i", "Count."), *answer, *ends, retrieved)
    truncate, retrieve = found["sent"][1:]
    assert (truncate["type"], truncate["item_id"]) == ("conversation.item.truncate", "m")
    assert 0 <= truncate["audio_end_ms"] <= 1000
    assert retrieve == {"type": "conversation.item.retrieve", "item_id": "m"}
    (told,) = found["answers"]
    assert (told["text"], told["end"]) == ("One", "cancelled")
    assert found["phase"] == "listening"


def test_an_answer_that_fails_says_why(browser: Browser, daemon: Daemon):
    details = {"type": "failed", "error": {"message": "of the test"}}
    found = run(browser, daemon, *said("i", "r"), written("i", "Count."), done("r", "failed", status_details=details))
    assert found["answers"][0]["error"] == "of the test"
    found = run(browser, daemon, *said("i", "r"), done("r", "failed", status_details=details))
    assert (found["answers"], found["failed"]) == ([], ["of the test"])
