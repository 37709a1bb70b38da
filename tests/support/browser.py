"""The system's Chromium, driven by Selenium: for the tests of the page."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import axe_core_python
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.ui import WebDriverWait

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium")
MISSING = "there is no Debian chromium with chromium-driver here: scripts/browser installs them"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
WAIT_S = 60
AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()


class Browser:
    """One browser with a profile of its own."""

    def __init__(self, profile: Path, *flags: str):
        assert DRIVER is not None, MISSING
        assert BROWSER is not None, MISSING
        options = ChromeOptions()
        options.binary_location = BROWSER
        for flag in (*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,800", *flags):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options=options, service=ChromeService(DRIVER))
        self.driver.set_script_timeout(WAIT_S)

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
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def press(self, name: str) -> None:
        """Click the button with this name that can be clicked."""

        def button() -> Any:
            script = (
                "return [...document.querySelectorAll('button')].find((b) => b.offsetParent && !b.disabled &&"
                " (b.getAttribute('aria-label') ?? b.textContent).trim() === arguments[0])"
            )
            return self.js(script, name)

        self.wait(button).click()

    def say(self, text: str) -> None:
        """Write a message and send it."""
        self.one(".composer textarea").send_keys(text)
        self.press("Send")

    def violations(self) -> list:
        """What axe-core finds."""
        self.js(AXE)
        run = "axe.run().then((found) => arguments[0](found.violations.map((v) => [v.id, v.nodes[0].html])))"
        return self.driver.execute_async_script(run)

    def complaints(self) -> list[str]:
        """What the console says of errors, the policy's among them, since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


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

    def __exit__(self, *_) -> None:
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
