"""The box on the real daemon: its events, the end of others' requests, and its view in a real browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from browser import BROWSER, DRIVER, MISSING, Browser
from daemon import ANSWER_S, Daemon, serving
from http_wire import Http, encode
from openapi_document import DOCUMENT, check_answer
from selenium.webdriver import Keys
from selenium.webdriver.common.alert import Alert

from umaserve.access.keys import KeyFile

LONG = {"prompt": "Once upon a time", "max_tokens": 7500, "ignore_eos": True, "stream": True}
in_a_browser = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    yield from serving(tmp_path_factory, "--parallel", "1", "--n-ctx", "8192")


class Watcher:
    """Looks at the box over HTTP."""

    def __init__(self, daemon: Daemon, key: str = "") -> None:
        self.http = Http(daemon.http)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http.send(encode("GET", "/api/box", headers=headers))

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def until(self, condition: Any) -> dict[str, Any]:
        """The first event for which it holds."""
        while True:
            event = json.loads(self.http.event())
            check_answer(event, DOCUMENT["components"]["schemas"]["Box"])
            if condition(event):
                return event


class Stream(threading.Thread):
    """Another client's request, which runs until it is ended."""

    def __init__(self, daemon: Daemon, key: str = "") -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.status = 0
        self._address = daemon.http
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.start()

    def run(self) -> None:
        url = f"http://{self._address}/v1/completions"
        with httpx.stream("POST", url, json=LONG, headers=self._headers, timeout=ANSWER_S) as response:
            self.status = response.status_code
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))

    @property
    def end(self) -> dict[str, Any]:
        self.join(ANSWER_S)
        return self.events[-1]


def end(daemon: Daemon, session: int) -> httpx.Response:
    return httpx.post(f"http://{daemon.http}/api/box/end", json={"session": session}, timeout=ANSWER_S)


def test_what_runs_and_waits_is_told_and_can_be_ended(box: Daemon) -> None:
    with Watcher(box) as watcher:
        assert watcher.until(lambda _: True)["requests"] == []
        first = Stream(box)
        # Two tokens of one tick have no gap.
        event = watcher.until(lambda event: any(one["tokens"] > 3 and one["gap_ms"] for one in event["requests"]))
        (one,) = event["requests"]
        assert (one["state"], one["why"], one["dialect"], one["key"]) == ("writing", None, "openai", None)
        assert one["kv_cells"] >= one["prompt_tokens"] > 0
        assert one["target_gap_ms"] == 80
        second = Stream(box)
        event = watcher.until(lambda event: len(event["requests"]) == 2 and event["requests"][1]["why"] == "slots")
        assert [one["state"] for one in event["requests"]] == ["writing", "waiting"]
        event = watcher.until(lambda event: event["figures"]["tokens_per_s"])
        assert (event["figures"]["running"], event["figures"]["waiting"]) == (1, 1)
        assert event["models"][0]["state"] == "loaded"
        for client, number in ((second, event["requests"][1]["session"]), (first, one["session"])):
            assert end(box, number).status_code == 200
            client.join(ANSWER_S)
            assert end(box, number).status_code == 404
        assert first.status == 200
        assert first.end["error"]["message"] == "request: the operator of this server has ended it"
        assert second.status == 403
        watcher.until(lambda event: event["requests"] == [])
    box.wait_until_quiet()


def test_with_keys_it_is_for_operators(own_daemon: Any, tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    bob, boss = file.add("bob"), file.add("boss", group="operator")
    daemon = own_daemon("--http", "127.0.0.1:0", "--api-keys", str(tmp_path / "keys.json"))
    for key, status in (("", 401), (bob, 403), (boss, 200)):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        asked = httpx.get(f"http://{daemon.http}/api/settings", headers=headers, timeout=ANSWER_S)
        assert asked.status_code == status
    with Watcher(daemon, boss) as watcher:
        stream = Stream(daemon, bob)
        event = watcher.until(lambda event: event["requests"])
        assert event["requests"][0]["key"] == "bob"
        asked = httpx.post(
            f"http://{daemon.http}/api/box/end",
            json={"session": event["requests"][0]["session"]},
            headers={"Authorization": f"Bearer {boss}"},
            timeout=ANSWER_S,
        )
        assert asked.status_code == 200
        stream.join(ANSWER_S)


# -- the view ----------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(opened: Browser, box: Daemon) -> Iterator[Browser]:
    opened.open(box.http, "box")
    opened.wait(lambda: opened.one(".parts:not([hidden])"))
    yield opened
    opened.driver.get("about:blank")
    box.wait_until_quiet()


def row(browser: Browser, words: str) -> Any:
    return browser.wait(lambda: next((one for one in browser.all("tr[data-session]") if words in one.text), None))


@in_a_browser
def test_a_request_of_somebody_else_is_seen_and_ended(browser: Browser, box: Daemon) -> None:
    first = Stream(box)
    assert "this machine" in row(browser, "writes").text
    second = Stream(box)
    row(browser, "waits for a place")
    first_chart = "return document.querySelector('.charts .hint:last-child').textContent"
    browser.wait(lambda: "from" in browser.js(first_chart))
    for width, height, scheme in ((1280, 1000, "light"), (1280, 1000, "dark"), (320, 800, "light")):
        with browser.screen(width, height, scheme):
            browser.wait(lambda: browser.js("return document.querySelector('.charts path').getBBox().width > 0"))
            browser.shoot(f"box-{width}-{scheme}")
            assert browser.violations() == []
            assert browser.js("return document.documentElement.scrollWidth <= innerWidth")
            assert browser.js("const p = document.querySelector('.box'); return p.scrollWidth <= p.clientWidth")
    assert browser.one("section[aria-label=Batches][hidden]"), "this daemon keeps none"
    for client, words in ((second, "waits for a place"), (first, "writes")):
        button = row(browser, words).find_element("css selector", "button")
        button.click()
        assert browser.driver.switch_to.alert.text.startswith("Really end the request of this machine, number ")
        assert client.is_alive(), "one touch is not enough"
        browser.driver.switch_to.alert.accept()
        client.join(ANSWER_S)
        assert not client.is_alive()
    assert first.end["error"]["code"] == "ended"
    browser.wait(lambda: browser.text("section[aria-label=Requests]").count("Nothing") == 2)
    assert browser.complaints() == []


@in_a_browser
def test_charts_have_their_summary_in_words(browser: Browser) -> None:
    for words in (
        ("Memory", "MiB", "available", "steady"),
        ("Compute threads", "all that may be used", "steady"),
    ):
        browser.wait(lambda words=words: any(all(word in one.text for word in words) for one in browser.all("figure")))


@in_a_browser
def test_models_are_moved_by_hand_and_refusals_are_in_words(browser: Browser, box: Daemon) -> None:
    browser.one(".models button").click()
    browser.wait(lambda: "not loaded" in browser.text(".models") or "stays loaded" in browser.text("[role=status]"))
    if "not loaded" in browser.text(".models"):
        browser.wait(lambda: browser.one(".models button").text == "Load")
        browser.one(".models button").click()
        browser.wait(lambda: ", takes " in browser.text(".models"))


def begin_batch(client: openai.OpenAI, requests: dict[str, dict[str, Any]]) -> str:
    """Make a batch of completions, by their custom ids; returns its own."""
    url: Any = "/v1/completions"
    body = {"model": "default", "prompt": "Once upon a time", "max_tokens": 2}
    lines = [
        json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body | wanted})
        for name, wanted in requests.items()
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h").id


@in_a_browser
def test_a_batch_is_watched_and_cancelled(
    opened: Browser, own_daemon: Any, tmp_path: Path, connect: Callable[[Daemon], openai.OpenAI]
) -> None:
    daemon = own_daemon("--http", "127.0.0.1:0", "--store", str(tmp_path / "store"))
    opened.open(daemon.http, "box")
    opened.wait(lambda: opened.one(".parts:not([hidden])"))
    assert opened.one("section[aria-label=Batches][hidden]"), "there is none"
    client, endless = connect(daemon), {"max_tokens": 2000, "ignore_eos": True}
    ended = begin_batch(client, {"short": {}})
    long = begin_batch(client, {"a": {}, "b": {}, "hot": {"temperature": 99}} | {f"r{i}": endless for i in range(20)})
    item = f"[data-batch={long}]"
    opened.wait(lambda: "1 failed" in opened.text(item))
    assert "this machine, /v1/completions, in progress, " in opened.text(item)
    assert " of 23" in opened.text(item)
    assert opened.one(f"{item} strong").get_attribute("title") == long
    other = f"[data-batch={ended}]"
    opened.wait(lambda: "/v1/completions, completed, 1 of 1" in opened.text(other))
    assert not opened.one(f"{other} button"), "there is nothing to cancel"
    for each, total in ((item, 23), (other, 1)):
        bar = opened.one(f"{each} progress")
        assert bar.get_property("max") == total
        assert 1 <= bar.get_property("value") <= total
    for width, height, scheme in ((1280, 1000, "light"), (1280, 1000, "dark"), (320, 800, "light")):
        with opened.screen(width, height, scheme):
            opened.shoot(f"box-batches-{width}-{scheme}")
            assert opened.violations() == []
            assert opened.js("const p = document.querySelector('.box'); return p.scrollWidth <= p.clientWidth")

    def press() -> Alert:
        opened.one(f"{item} button").send_keys(Keys.ENTER)
        return opened.driver.switch_to.alert

    alert = press()
    assert alert.text == f"Really cancel the batch {long}?"
    alert.dismiss()
    assert client.batches.retrieve(long).status == "in_progress"
    press().accept()
    opened.wait(lambda: "/v1/completions, cancelled, " in opened.text(item))
    assert not opened.one(f"{item} button")
    assert opened.driver.switch_to.active_element.get_attribute("data-batch") == long
    assert opened.complaints() == []
    opened.driver.get("about:blank")


@in_a_browser
def test_the_settings_are_read_when_they_are_unfolded(browser: Browser) -> None:
    assert "parallel" not in browser.text(".settings")
    browser.one(".settings summary").click()
    browser.wait(lambda: "parallel" in browser.text(".settings"))
    browser.shoot("box-settings")
    set_by_us = browser.js("return [...document.querySelectorAll('dt strong')].map((one) => one.textContent)")
    assert {"parallel", "n_ctx", "http", "socket"} <= set(set_by_us)
    assert browser.violations() == []


RECORDER = """
const plain = fetch;
window.looks = [];
window.fetch = (path, options) => {
  if (path === "/api/box") looks.push(options.signal);
  return plain(path, options);
};
"""
HIDE = """
Object.defineProperty(document, "hidden", { value: arguments[0], configurable: true });
document.dispatchEvent(new Event("visibilitychange"));
"""


@in_a_browser
def test_nobody_looks_from_another_view_or_a_hidden_tab(browser: Browser) -> None:
    def looks() -> list[bool]:
        """Of each stream, whether it lasts."""
        return browser.js("return looks.map((signal) => !signal.aborted)")

    browser.js("location.hash = '#chat'")
    browser.wait(lambda: browser.one(".composer"))
    browser.js(RECORDER)
    browser.js("location.hash = '#box'")
    browser.wait(lambda: browser.one(".parts:not([hidden])"))
    assert looks() == [True]
    browser.js(HIDE, True)
    assert looks() == [False]
    browser.js(HIDE, False)
    assert looks() == [False, True]
    browser.js("location.hash = '#chat'")
    browser.wait(lambda: browser.one(".composer"))
    assert looks() == [False, False]


@in_a_browser
def test_who_is_no_operator_is_told_in_words(opened: Browser, own_daemon: Any, tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.json"), missing_ok=True)
    bob, boss = file.add("bob"), file.add("boss", group="operator")
    daemon = own_daemon("--http", "127.0.0.1:0", "--api-keys", str(tmp_path / "keys.json"))
    opened.open(daemon.http, "box")
    opened.js("sessionStorage.setItem('umaserve.key', arguments[0])", bob)
    opened.driver.refresh()
    opened.wait(lambda: "for operators only" in opened.text("main .problem"))
    assert opened.one(".parts[hidden]")
    opened.press("Change the key")
    opened.wait(lambda: "asks for an API key" in opened.text("dialog[open]"))
    opened.one("dialog #key").send_keys(boss)
    opened.press("Use this key")
    opened.wait(lambda: opened.one(".parts:not([hidden])"))
    opened.driver.get("about:blank")
