"""The system's Chromium, driven by Selenium: for the tests of the page."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import axe_core_python
from selenium.common import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.ui import WebDriverWait

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium")
MISSING = "there is no Debian chromium with chromium-driver here: scripts/peers installs them"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    # A camera with a test card and a microphone with beeps, which are there for whoever asks.
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
    # Another machine, as far as the browser knows: what it gives only to secure pages isn't there.
    "--host-resolver-rules=MAP other.test 127.0.0.1",
)
WAIT_S = 60

Stored = dict[str, Any]
"""What the page keeps of a conversation, or of a turn."""

DEFAULTS = {"temperature": 0, "top_p": 0.95, "min_p": 0.05, "max_tokens": 64}
DEFAULTS |= {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
RECORDER = """
window.wire = [];
const Plain = WebSocket;
window.WebSocket = class extends Plain {
  constructor(...a) {
    super(...a);
    this.addEventListener("message", ({ data }) => window.wire.push(JSON.parse(data)));
  }
  send(data) {
    window.wire.push(JSON.parse(data));
    super.send(data);
  }
};
"""
"""Keeps what the page's WebSockets send and receive."""
READ = """
const { openLibrary } = await import("/page/chat/library.js");
const library = await openLibrary();
const [newest] = await library.list();
if (!newest) return null;
const found = await library.get(newest.id);
return { ...found, order: Object.keys(found.turns) };
"""
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()


class Browser:
    """One browser with a profile of its own."""

    def __init__(self, profile: Path):
        assert DRIVER is not None, MISSING
        assert BROWSER is not None, MISSING
        options = ChromeOptions()
        options.binary_location = BROWSER
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,800"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options=options, service=ChromeService(DRIVER))
        self.driver.set_script_timeout(WAIT_S)
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": RECORDER})

    def close(self) -> None:
        self.driver.quit()

    def open(self, http: str, view: str = "chat") -> None:
        """Open the page of the daemon at HOST:PORT, and wait until it is there."""
        self.driver.get(f"http://{http}/#{view}")
        self.wait(lambda: self.one(".view > *"))

    def wait(self, condition: Callable[[], Any]) -> Any:
        """What ``condition`` returns once that is true."""
        return WebDriverWait(self.driver, WAIT_S, 0.05).until(lambda _: condition())

    def js(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(script, *values)

    def module(self, script: str, *values: Any) -> Any:
        """What an asynchronous script returns, which may import the page's modules and has ``values``."""
        run = f"(async (values) => {{ {script} }})(arguments[0]).then(arguments[1], (e) => arguments[1](`${{e}}`))"
        return self.driver.execute_async_script(run, list(values))

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        """The first element, or ``None``."""
        return next(iter(self.all(selector)), None)

    def text(self, selector: str) -> str:
        """All text of the first element, whether it is to be seen or not; empty without one."""
        found: str = self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        return found

    def press(self, name: str) -> None:
        """Click the button with this name that can be clicked, in a menu too."""
        script = """
            const named = [...document.querySelectorAll("button")].filter((b) => !b.disabled &&
              (b.getAttribute("aria-label") ?? b.textContent).trim() === arguments[0]);
            const shown = named.find((b) => b.offsetParent) ?? named.find((b) => b.closest(".menu"));
            if (shown && !shown.offsetParent) shown.closest(".menu").showPopover();
            return shown;
        """

        self._click(lambda: self.js(script, name))

    def click(self, selector: str) -> None:
        """Click the first element once it is there."""
        self._click(lambda: self.one(selector))

    def _click(self, find: Callable[[], Any]) -> None:
        def clicked() -> bool:
            element = find()
            if element is not None:
                element.click()
            return element is not None

        # It may be drawn anew before the click.
        WebDriverWait(self.driver, WAIT_S, 0.05, [StaleElementReferenceException]).until(lambda _: clicked())

    def say(self, text: str) -> None:
        """Write a message and send it."""
        self.one(".composer textarea").send_keys(text)
        self.press("Send")

    def start(self, http: str, **settings: Any) -> None:
        """Open the page anew, with these settings instead of the page's own: greedy, unless they say otherwise."""
        self.open(http)
        preset = [{"name": "of the test", "system": "", "settings": DEFAULTS | settings}]
        self.js("localStorage.clear(); localStorage.setItem('umaserve.presets', arguments[0])", json.dumps(preset))
        self.driver.refresh()
        self.wait(lambda: self.one("#preset option:last-child"))
        self.set("#preset", "of the test", "change")

    def set(self, selector: str, value: str, event: str = "input") -> None:
        script = "const [e] = document.querySelectorAll(arguments[0]); e.value = arguments[1];"
        self.js(script + "e.dispatchEvent(new Event(arguments[2]))", selector, value, event)

    def wait_for_end(self) -> None:
        over = ":is([data-phase=ended], [data-phase=failed])"
        self.wait(lambda: self.one(f".answer{over}") and not self.one(f".answer:not({over}), [aria-busy=true]"))
        self.wait(lambda: self.one(".composer .primary:not([hidden])"))
        assert self.one(".answer[data-phase=ended]"), self.text(".answer .note")

    def stored(self) -> Stored:
        """The newest conversation that the browser keeps."""
        stored: Stored = self.wait(lambda: self.module(READ))
        return stored

    def modified_at(self) -> list[int]:
        """How many characters of the answer had come each time the daemon took a change of its settings."""
        wire = self.js("return window.wire")
        taken = [i for i, message in enumerate(wire) if message.get("operation") == "modify"]
        return [sum(len(message["token"]) for message in wire[:i] if message["type"] == "token") for i in taken]

    def answers(self) -> list[Stored]:
        """Its answers, in the order of their making, once they all have ended."""

        def ended() -> list[Stored]:
            stored = self.stored()
            turns = [stored["turns"][each] for each in stored["order"]]
            answers = [turn for turn in turns if turn["role"] == "assistant"]
            return answers if all("end" in answer for answer in answers) else []

        answers: list[Stored] = self.wait(ended)
        return answers

    def imports(self, directory: Path, text: str, **answer: Any) -> None:
        """Bring in a conversation with this answer, and open it."""
        question = {"id": "q", "parent": "", "role": "user", "text": "Why?"}
        turns = {"q": question, "a": {"id": "a", "parent": "q", "role": "assistant", "text": text, **answer}}
        title = f"Imported {uuid.uuid4()}"
        conversation = {"title": title, "system": "", "model": "", "settings": {}, "turns": turns}
        whole = {"format": "umaserve-conversations", "version": 1, "conversations": [conversation]}
        file = directory / "conversations.json"
        file.write_text(json.dumps(whole))
        self.one("input[type=file]").send_keys(str(file))
        self.wait(lambda: self.text(".conversations .open") == title)
        self.js("document.querySelector('.conversations .open').click()")
        self.wait(lambda: self.one(".answer .markdown > *"))

    @contextlib.contextmanager
    def screen(self, width: int, height: int, scheme: str = "light") -> Iterator[None]:
        """A screen of this size, a phone's if it is narrow, in the light or the dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 400}
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def shoot(self, name: str) -> None:
        """Keep a picture, where somebody has named a folder to look at them."""
        if folder := os.environ.get("PAGE_SCREENSHOTS"):
            Path(folder).mkdir(exist_ok=True)
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))

    def violations(self) -> list[Any]:
        """What axe-core finds."""
        self.js(AXE)
        run = "axe.run().then((found) => arguments[0](found.violations.map((v) => [v.id, v.nodes[0].html])))"
        violations: list[Any] = self.driver.execute_async_script(run)
        return violations

    def complaints(self) -> list[str]:
        """What the console says of errors, the policy's among them, since the last call."""
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]


class CuttingProxy:
    """Passes connections on to the daemon at HOST:PORT, and can cut them all."""

    def __init__(self, http: str):
        host, _, port = http.rpartition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    @property
    def http(self) -> str:
        """HOST:PORT of the proxy."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> int:
        """End all connections; returns how many there were."""
        cut, self._open = self._open, set()
        for each in cut:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        return len(cut) // 2

    def silence(self) -> int:
        """Keep all connections open, but pass on nothing more of them; returns how many there were."""
        self._silent |= self._open
        return len(self._silent) // 2

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._to)
                self._open |= {client, server}
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._silent:
                    sink.sendall(data)
        for each in (source, sink):
            self._open.discard(each)
            # Without it the other thread's recv keeps the socket open.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
