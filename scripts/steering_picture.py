"""Records how an answer is paused, changed and continued, as a moving picture.

python scripts/steering_picture.py FILE.webp
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from browser import Browser
from daemon import Daemon
from PIL import Image

WIDTH, HEIGHT, SCALE = 1000, 600, 0.8
"""The page, wide enough for its settings to stand beside the answer, and how much smaller the picture is."""
FRAME_S = 0.16
LAST_S = 3.0
POINTED_S = 0.6
QUESTION = "Describe a garden at night."
BEFORE, AFTER, STEPS = 0.2, 1.5, 7
CHARACTERS = 240
POINT = """
const meant = document.querySelector(arguments[0]) ??
  [...document.querySelectorAll("button")].find((b) => b.offsetParent && b.textContent.trim() === arguments[1]);
meant.style.outline = "3px solid #e8590c";
setTimeout(() => meant.style.outline = "", arguments[2]);
"""
"""Draws a line around an element, by its selector or a button's name, for some milliseconds."""


class Recorder:
    """Takes a picture of the page every ``FRAME_S``, as it is then."""

    def __init__(self, browser: Browser) -> None:
        self.frames: list[Image.Image] = []
        self.seconds: list[float] = []
        self._browser = browser
        self._taken_at = 0.0

    def watch(self, until: Callable[[], object]) -> None:
        """Take pictures until something is so."""
        while not until():
            self._take()

    def wait(self, seconds: float) -> None:
        """Take pictures for a while."""
        end = time.monotonic() + seconds
        self.watch(lambda: time.monotonic() >= end)

    def _take(self) -> None:
        time.sleep(max(0.0, self._taken_at + FRAME_S - time.monotonic()))
        now = time.monotonic()
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": SCALE}
        shot = self._browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "clip": clip})
        if self.frames:
            self.seconds.append(now - self._taken_at)
        self._taken_at = now
        self.frames.append(Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB"))

    def press(self, name: str) -> None:
        """Show which button is meant, then press it."""
        self._browser.js(POINT, "none", name, 1000 * POINTED_S)
        self.wait(POINTED_S)
        self._browser.press(name)

    def write(self, file: Path) -> None:
        """Write the pictures as one that begins again at its end."""
        durations = [round(1000 * seconds) for seconds in (*self.seconds, LAST_S)]
        first, *others = self.frames
        first.save(file, save_all=True, append_images=others, duration=durations, loop=0, lossless=True, method=6)


def record(browser: Browser, http: str) -> Recorder:
    """The pictures of an answer that is steered."""
    browser.start(http, temperature=BEFORE, max_tokens=400, seed=7)
    browser.press("Settings")
    browser.press("Close the conversations")
    recorder = Recorder(browser)
    area = browser.one(".composer textarea")
    for word in QUESTION.split(" "):
        area.send_keys(f"{word} ")
        recorder.wait(2 * FRAME_S)
    recorder.press("Send")
    recorder.watch(lambda: len(browser.text(".answer .markdown")) > CHARACTERS)
    recorder.press("Pause")
    recorder.watch(lambda: browser.one(".answer[data-phase=paused]"))
    recorder.wait(1.0)
    browser.js(POINT, "#set-temperature", "", 2000)
    for step in range(1, STEPS + 1):
        browser.set("#set-temperature", f"{BEFORE + (AFTER - BEFORE) * step / STEPS:.1f}")
        recorder.wait(FRAME_S)
    recorder.wait(1.0)
    recorder.press("Go on")
    recorder.watch(lambda: f"temperature {AFTER}" in browser.text(".answer"))
    written = len(browser.text(".answer .markdown"))
    recorder.watch(lambda: len(browser.text(".answer .markdown")) > written + CHARACTERS)
    browser.press("Stop")
    browser.wait_for_end()
    recorder.wait(FRAME_S)
    return recorder


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "daemon").mkdir()
        daemon = Daemon(Path(folder) / "daemon", "--http", "127.0.0.1:0")
        browser = Browser(Path(folder) / "profile")
        try:
            with browser.screen(WIDTH, HEIGHT):
                record(browser, daemon.http).write(Path(sys.argv[1]))
        finally:
            browser.close()
            daemon.stop()


if __name__ == "__main__":
    main()
