"""The page's voice mode, in a real browser with a microphone of beeps, on models of which one hears (with a tiny
projector, whose weights are random) and one does not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import standin_projectors as projectors
from browser import BROWSER, DRIVER, MISSING, Browser
from daemon import Daemon
from selenium.webdriver import ActionChains, Keys

from umaserve.settings.model_files import default_model
from umaserve.speech.load import load

pytestmark = [
    pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING),
    pytest.mark.skipif(load() is None, reason="no voice is installed (umaserve[speech])"),
]

SPY = """
window.streams = [];
window.contexts = [];
const open = navigator.mediaDevices.getUserMedia;
MediaDevices.prototype.getUserMedia = async function (wanted) {
  if (window.refusal) throw new DOMException("of the test", window.refusal);
  const stream = await open.call(this, wanted);
  window.streams.push(stream);
  return stream;
};
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (when) {
  window.contexts.push(this.context);
  start.call(this, when);
};
"""
"""Keeps what listens and what sounds; ``refusal`` is the error of a microphone that is refused."""
WATCH = """
window.told = [];
const words = document.querySelector(".voice p");
new MutationObserver(() => window.told.push(words.textContent)).observe(words, { childList: true });
"""
"""Keeps what the voice mode says."""
TALK = ".voice .primary"


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
    daemon = Daemon(
        folder, "--http", "127.0.0.1:0", "--config", str(folder / "umaserve.toml"), env={"UMA_THREADS": "1"}
    )
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def start(browser: Browser, http: str, model: str, **settings) -> None:
    """Open the voice mode on a new page."""
    browser.start(http, **settings)
    browser.wait(lambda: browser.one(f"[aria-label=Model] option[value={model}]"))
    browser.set("[aria-label=Model]", model, "change")
    browser.press("Talk")
    wait_for(browser, "idle", "Hold the button and talk")


def wait_for(browser: Browser, phase: str, words: str) -> None:
    browser.wait(lambda: browser.one(f".voice[data-phase={phase}]") and browser.text(".voice p").startswith(words))


def hold(browser: Browser, seconds: float = 0.6) -> None:
    """Press the button and let it go."""
    ActionChains(browser.driver).click_and_hold(browser.one(TALK)).pause(seconds).release().perform()


def sounds(browser: Browser) -> list[str]:
    """The states of the contexts of all sounds so far."""
    return browser.js("return window.contexts.map((one) => one.state)")


def test_who_talks_is_answered_aloud_and_may_interrupt(browser: Browser, hearing: Daemon):
    start(browser, hearing.http, "ears", max_tokens=1500, ignore_eos=True)
    for scheme, width in (("light", 1280), ("dark", 320)):
        with browser.screen(width, 640, scheme):
            assert browser.violations() == []
            assert browser.js("return document.documentElement.scrollWidth") <= width
            browser.shoot(f"voice-{scheme}")
    ActionChains(browser.driver).click_and_hold(browser.one(TALK)).perform()
    wait_for(browser, "listening", "Listening… Let go to send.")
    browser.wait(lambda: browser.js("return document.querySelector('.voice meter').value > 0"))
    assert browser.violations() == []
    browser.wait(lambda: float(browser.text(".voice output").split()[0]) > 0)
    ActionChains(browser.driver).pause(0.5).release().perform()
    # The model gets the sound itself, which the question shows.
    browser.wait(lambda: browser.one(".turn.user audio"))
    wait_for(browser, "speaking", "Speaking…")
    assert browser.one(".answer[data-phase=writing]")
    # Who talks again ends the answer and its speech. By the keyboard a tap begins, and another one would send.
    browser.one(TALK).send_keys(Keys.SPACE)
    wait_for(browser, "listening", "Listening… Tap to send.")
    browser.wait(lambda: set(sounds(browser)) == {"closed"})
    browser.wait(lambda: "stopped" in browser.text(".figures"))
    browser.one(TALK).send_keys(Keys.ESCAPE)
    wait_for(browser, "idle", "Hold the button")
    assert len(browser.all(".turn")) == 2
    browser.press("Leave the voice mode")
    browser.wait(lambda: not browser.one(".voice:not([hidden])"))
    tracks = "window.streams.flatMap((one) => one.getTracks()).map((one) => one.readyState)"
    assert browser.js(f"return {tracks}") == ["ended"]
    assert browser.js("return document.activeElement.ariaLabel") == "Talk"
    # Answers to what is written are as silent as before.
    assert browser.js("return localStorage.getItem('umaserve.speech')") == "off"


def test_a_deaf_model_is_told_what_another_one_has_heard(browser: Browser, hearing: Daemon):
    start(browser, hearing.http, "deaf", max_tokens=24)
    browser.js(WATCH)
    hold(browser)
    browser.wait(lambda: browser.text(".turn.user .text"))
    assert browser.one(".turn.user audio") is None
    browser.wait_for_end()
    (answer,) = browser.answers()
    assert answer["model"] == "deaf"
    browser.wait(lambda: sounds(browser))
    told = browser.js("return window.told")
    assert [one.partition("…")[0] for one in told[:3]] == ["Listening", "Understanding", "Thinking"]


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
    hold(browser, 0.1)
    wait_for(browser, "failed", words)
    browser.js("window.refusal = null")
    hold(browser, 0.1)
    wait_for(browser, "listening", "Listening…")
    browser.driver.refresh()


def test_who_leaves_before_the_microphone_is_there_is_not_heard(browser: Browser, hearing: Daemon):
    start(browser, hearing.http, "ears")
    browser.press("Leave the voice mode")
    button = "document.querySelector('[aria-controls=voice]')"
    browser.js(f"window.streams = []; {button}.click()")
    browser.wait(lambda: browser.one(".voice:not([hidden])") or browser.js("return window.streams.length"))
    browser.js(f"{button}.click()")
    browser.wait(lambda: browser.js("return window.streams.length"))
    browser.wait(lambda: browser.js("return window.streams[0].getTracks()[0].readyState") == "ended")


def test_where_no_model_hears_the_page_says_so(browser: Browser, daemon: Daemon):
    browser.start(daemon.http)
    button = browser.wait(lambda: browser.one("[aria-controls=voice][aria-disabled=true]"))
    assert button.get_attribute("title").startswith("Talk: No model here hears.")
    button.click()
    browser.wait(lambda: browser.text(".notice").startswith("No model here hears."))
    assert not browser.one(".voice:not([hidden])")
