"""Answers that the page speaks, in a real browser, with the installed voice."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from browser import BROWSER, DRIVER, MISSING
from browser import Browser as PlainBrowser
from daemon import ANSWER_S, Daemon

from umaserve.speech.load import load
from umaserve.speech.voice import SAMPLE_RATE

pytestmark = [
    pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING),
    pytest.mark.skipif(load() is None, reason="no voice is installed (umaserve[speech])"),
]

SPY = """
window.sounds = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when) {
  window.context = this.context;
  const peak = this.buffer.getChannelData(0).reduce((a, b) => Math.max(a, b));
  window.sounds.push([when, this.buffer.length, peak, this.context.sampleRate]);
  start.call(this, when);
};
const makeUrl = URL.createObjectURL;
URL.createObjectURL = (blob) => {
  window.saved = blob;
  return makeUrl.call(URL, blob);
};
"""
"""Keeps what is played (when, how many samples, their peak, the rate), and the latest file that is saved."""
SAVED = """
const reader = new FileReader();
const read = new Promise((resolve) => (reader.onload = resolve));
reader.readAsDataURL(window.saved);
await read;
return reader.result;
"""
ONCE = """
const plain = window.fetch;
let asked = 0;
window.fetch = (path, options) => {
  if (path === "/v1/audio/speech") asked += 1;
  return asked > 1 ? Promise.reject(new TypeError("of the test")) : plain(path, options);
};
"""
"""Lets the page have one text spoken."""
PARTS = """
const { nextPart } = await import("/page/voice/spoken_text.js");
const [text, step] = values;
const parts = [];
for (let at = 0, seen = step; at < text.length; ) {
  const { length, words } = nextPart(text.slice(at, seen), seen >= text.length);
  if (length === 0 && seen >= text.length) throw new Error(`no way on from ${at}`);
  at += length;
  if (words) parts.push(words);
  if (length === 0) seen += step;
}
return parts;
"""
"""The parts in which a text is spoken that grows by so many characters at a time."""
ON, ALOUD = "Speak answers", "Read aloud"
SEA = "The sea is wide.\n\n```python\nprint('nobody says this')\n```\n\nIts *salt* is old, Dr. Marsh. Is it? It is."


class Browser(PlainBrowser):
    """On the page of one daemon."""

    def start(self, http: str, **settings) -> None:
        """As before, with answers that are not spoken."""
        self.open(http)
        self.js("localStorage.removeItem('umaserve.speech')")
        super().start(http, **settings)

    def wait_for_button(self, pressed: str) -> None:
        button = f"[...document.querySelectorAll('.composer button')].find((one) => one.title === '{ON}')"
        self.wait(lambda: self.js(f"return {button}?.ariaPressed") == pressed)

    def sounds(self) -> list[tuple[float, int, float, int]]:
        return self.js("return window.sounds")


def speak(daemon: Daemon, text: str) -> httpx.Response:
    asked = {"input": text, "response_format": "pcm"}
    return httpx.post(f"http://{daemon.http}/v1/audio/speech", json=asked, timeout=ANSWER_S)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SPY})
    yield browser
    browser.close()


def test_an_answer_is_heard_while_it_is_written(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4000, ignore_eos=True)
    browser.press(ON)
    browser.say("Tell me about the sea.")
    browser.wait(lambda: len(browser.sounds()) > 3)
    assert browser.one(".answer[data-phase=writing]")
    browser.press("Stop")
    # What is heard ends with it, at once.
    browser.wait(lambda: browser.js("return window.context.state") == "closed")
    sounds = browser.sounds()
    assert browser.js("return window.context.currentTime") > sounds[0][0]
    assert {rate for *_, rate in sounds} == {SAMPLE_RATE}
    assert max(peak for _, _, peak, _ in sounds) > 0.1
    # One after the other, without a sample between them or one that is heard twice, as long as the voice is ahead.
    ends = [round(when * SAMPLE_RATE) + length for when, length, *_ in sounds]
    begins = [round(when * SAMPLE_RATE) for when, *_ in sounds]
    assert all(begin >= end for begin, end in zip(begins[1:], ends, strict=False))
    assert sum(begin == end for begin, end in zip(begins[1:], ends, strict=False)) >= 2


def test_who_pauses_an_answer_holds_its_sound(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4000, ignore_eos=True)
    browser.press(ON)
    browser.say("Tell me about the sea.")
    browser.wait(browser.sounds)
    for act in ("Go on", "Stop"):
        browser.press("Pause")
        browser.wait(lambda: browser.js("return window.context.state") == "suspended")
        at = browser.js("return window.context.currentTime")
        daemon.ask(max_tokens=4)
        assert browser.js("return window.context.currentTime") == at
        browser.press(act)
        after = "running" if act == "Go on" else "closed"
        browser.wait(lambda after=after: browser.js("return window.context.state") == after)
    browser.wait_for_end()
    assert not browser.one("[aria-label='Stop reading']")


def test_what_could_be_spoken_is_heard_to_its_end(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    browser.imports(tmp_path, f"The sea is wide.\n\n```\n{'#' * 700}\n```\n\n{'Its salt is old. ' * 60}", end="stop")
    browser.js(ONCE)
    browser.press(ALOUD)
    browser.wait(lambda: browser.text(".notice") == "This can't be read aloud: The server can't be reached.")
    when, length, *_ = browser.sounds()[-1]
    assert browser.js("return window.context.currentTime") >= when + length / SAMPLE_RATE


def test_whether_answers_are_spoken_is_kept(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4000, ignore_eos=True)
    browser.wait_for_button("false")
    browser.press(ON)
    browser.wait_for_button("true")
    browser.driver.refresh()
    browser.wait_for_button("true")
    browser.say("Tell me about the sea.")
    browser.wait(browser.sounds)
    browser.press(ON)
    browser.wait(lambda: browser.js("return window.context.state") == "closed")
    heard = len(browser.sounds())
    # From here on it is spoken again, not from its beginning.
    browser.press(ON)
    browser.wait(lambda: len(browser.sounds()) > heard and browser.js("return window.context.state") == "running")
    browser.press(ON)
    browser.press("Stop")
    browser.wait_for_end()
    browser.driver.refresh()
    browser.wait_for_button("false")
    assert browser.sounds() == []


def test_an_answer_is_read_aloud_and_kept_as_a_file(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    browser.imports(tmp_path, SEA, end="stop")
    browser.press(ALOUD)
    browser.wait(browser.sounds)
    assert browser.violations() == []
    for scheme, width in (("light", 1280), ("dark", 320)):
        with browser.screen(width, 640, scheme):
            assert browser.js("return document.documentElement.scrollWidth") <= width
            browser.shoot(f"speech-{scheme}")
    browser.press("Stop reading")
    browser.wait(lambda: browser.js("return window.context.state") == "closed")
    browser.wait(lambda: not browser.one("[aria-label='Stop reading']"))
    browser.press("Save the speech")
    browser.wait(lambda: browser.js("return window.saved?.type") == "audio/wav")
    file = base64.b64decode(browser.module(SAVED).partition(",")[2])
    with wave.open(io.BytesIO(file)) as sound:
        assert (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (1, 2, SAMPLE_RATE)
        samples = sound.readframes(sound.getnframes())
    # All that the voice says of the text, in which it leaves out code by itself, and nothing else.
    assert samples == speak(daemon, SEA).content
    assert np.abs(np.frombuffer(samples, "<i2")).max() > 1000


def test_who_may_ask_no_more_for_now_hears_the_whole_answer_later(
    browser: Browser, daemon: Daemon, own_daemon, tmp_path: Path
):
    limited = own_daemon("--http", "127.0.0.1:0", "--rate-requests", "30")
    sentences = ["The sea is wide.", "Its salt is old."]
    browser.start(limited.http)
    # Of two parts, since code counts as text.
    browser.imports(tmp_path, f"\n\n```\n{'#' * 700}\n```\n\n".join(sentences), end="stop")
    while speak(limited, ".").status_code != 429:
        pass
    browser.press("Save the speech")
    browser.wait(lambda: "your key's limit is reached. The speech goes on in " in browser.text(".notice"))
    browser.wait(lambda: browser.js("return window.saved?.type") == "audio/wav")
    file = base64.b64decode(browser.module(SAVED).partition(",")[2])
    assert file[44:] == b"".join(speak(daemon, one).content for one in sentences)
    assert all("429" in complaint for complaint in browser.complaints())


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_growing_text_is_spoken_in_sentences(browser: Browser, daemon: Daemon, step: int):
    browser.open(daemon.http)
    parts = browser.module(PARTS, SEA, step)
    assert " ".join(" ".join(parts).split()) == "The sea is wide. Its *salt* is old, Dr. Marsh. Is it? It is."
    if step == 1:
        assert parts == ["The sea is wide.", "Its *salt* is old, Dr. Marsh.", "Is it?", "It is."]
    assert browser.module(PARTS, "~~~\nall code\n``` `\n", step) == []
    assert browser.module(PARTS, "雨です。晴れ", 4) == ["雨です。", "晴れ"]
    # Code of any length is left out, and is no reason to speak what is around it apart.
    for code in (f"```\n{'a. ' * 900}\n```", "~~~ \f``` ~~~", f"```{'#' * 700}```"):
        parts = browser.module(PARTS, f"The sea {code} is\fwide", step)
        assert " ".join(" ".join(parts).split()) == "The sea is wide"


@pytest.mark.parametrize("text", ["word " * 60_000, "`" * 300_000, "~~~ ```" * 40_000, "abc." * 80_000, "?)" * 99_999])
def test_a_text_without_an_end_is_spoken_in_parts(browser: Browser, daemon: Daemon, text: str):
    browser.open(daemon.http)
    parts = browser.module(PARTS, text, len(text))
    assert max((len(part) for part in parts), default=0) <= 600
    if "`" not in text:
        assert "".join(parts).replace(" ", "") == text.replace(" ", "")


def test_without_a_voice_the_page_says_so(browser: Browser, tmp_path: Path):
    mute = "import sys; sys.modules['hibari'] = None; from umaserve.cli import main; sys.exit(main())"
    daemon = Daemon(tmp_path, "--http", "127.0.0.1:0", program=("-c", mute), env={"UMA_THREADS": "1"})
    try:
        browser.start(daemon.http)
        browser.imports(tmp_path, SEA, end="stop")
        button = browser.one(".composer button[aria-disabled=true]")
        assert button.get_attribute("title").startswith("Speak answers: This server has no voice.")
        button.click()
        browser.wait(lambda: browser.text(".notice").startswith("This server has no voice."))
        buttons = "document.querySelectorAll('.answer button')"
        names = browser.js(f"return [...{buttons}].map((one) => one.ariaLabel ?? one.textContent)")
        assert "Copy the answer" in names
        assert not {ALOUD, "Save the speech"} & set(names)
        assert browser.violations() == []
    finally:
        daemon.stop()
    assert "Traceback" not in daemon.logs, daemon.logs
