"""The page's tools: a real browser, daemon and MCP server, and a script in a model's place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import BROWSER, DRIVER, MISSING, Browser
from coding_agents import scripted
from daemon import Daemon
from scripted_daemon import Script
from selenium.webdriver import Keys

pytestmark = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)
mcp_over_http = pytest.importorskip("mcp_over_http", reason="mcp is not installed (umaserve[peers])")


class World:
    """A daemon with a script, whose page may use a server of tools."""

    def __init__(self, folder: Path, server: mcp_over_http.ToolServer, deaf: mcp_over_http.ToolServer):
        self.server, self.deaf = server, deaf
        self.daemon: Daemon
        self.script: Script
        flags = ("--page-tool-servers", f"{server.address},{deaf.address}")
        self.daemon, self.script = scripted(folder, *flags)

    @property
    def results(self) -> list[str]:
        """What the model was last told of its calls."""
        return [turn["content"] for turn in self.script.requests[-1]["turns"] if turn["role"] == "tool"]


@pytest.fixture(scope="module")
def module_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with mcp_over_http.serving() as server, mcp_over_http.serving(cors=False) as deaf:
        world = World(tmp_path_factory.mktemp("world"), server, deaf)
        yield world
        assert world.daemon.stop() == 0, world.daemon.logs
        assert "Traceback" not in world.daemon.logs, world.daemon.logs


@pytest.fixture
def world(module_world: World) -> World:
    module_world.script.clear()
    module_world.server.ran.clear()
    return module_world


def choose(browser: Browser) -> None:
    """Open the list of tools, and wait for all servers but the one that pages can't read."""
    browser.click("[aria-haspopup=dialog]")
    browser.wait(lambda: len(browser.all(".tools-list")) == 3)
    browser.wait(
        lambda: browser.all(".tools-list label") and "can't be had" in browser.text(".servers section:nth-child(3)")
    )


def switch(browser: Browser, tool: str) -> None:
    script = (
        "return [...document.querySelectorAll('.tools-list label')].find((one) => one.textContent === arguments[0])"
    )
    browser.wait(lambda: browser.js(script, tool)).click()


def begin(browser: Browser, world: World, *tools: str) -> None:
    """Open a new page, and switch these tools on in its conversation."""
    browser.start(world.daemon.http, max_tokens=0)
    choose(browser)
    for tool in tools:
        switch(browser, tool)
    # The browser says that it was not allowed to read what the other server said.
    assert all(world.deaf.address in complaint for complaint in browser.complaints())
    browser.press("Close")
    browser.wait(lambda: not browser.one("dialog.tool-chooser"))
    assert browser.js("return document.activeElement.title") == f"Tools: {len(tools)} switched on"


def summaries(browser: Browser) -> list[str]:
    return browser.js("return [...document.querySelectorAll('.calls summary')].map((one) => one.textContent)")


def wait_for(browser: Browser, *words: str) -> None:
    browser.wait(lambda: summaries(browser) == list(words))


def wait_for_answer(browser: Browser, text: str) -> None:
    browser.wait(lambda: text in browser.text(".turn.answer:last-child .markdown"))
    browser.wait_for_end()


def test_a_call_is_shown_and_asked_for_and_its_result_answered(browser: Browser, world: World):
    begin(browser, world, "look_up")
    world.script.add("I look.", ("look_up", {"word": "moon"}))
    world.script.add("It means nothing.")
    browser.say("What is the moon?")
    wait_for(browser, "Calls look_up: may it run?")
    assert world.server.ran == []
    assert browser.text(".answer .note") == "The model wants to call a tool. May it?"
    assert '"word": "moon"' in browser.text(".calls pre")
    for scheme, width in (("light", 1280), ("dark", 320)):
        with browser.screen(width, 640, scheme):
            assert browser.violations() == []
            browser.shoot(f"tools-asked-{scheme}")
            assert browser.js("return document.documentElement.scrollWidth") <= width
    browser.press("Run once")
    wait_for_answer(browser, "It means nothing.")
    assert summaries(browser) == ["Calls look_up: done"]
    assert world.server.ran == ["moon"]
    assert world.results == ["moon means nothing."]
    assert not browser.one(".calls details[open]")
    # The call stands apart from what was said.
    assert browser.text(".turn.answer .markdown") == "I look."
    assert [turn["role"] for turn in world.script.requests[-1]["turns"]] == ["user", "assistant", "tool"]
    # What was said and what came of it is there after a reload, and goes with the next question.
    browser.driver.refresh()
    wait_for(browser, "Calls look_up: done")
    browser.say("And now?")
    browser.wait(lambda: len(world.script.requests) == 3)
    browser.wait_for_end()
    assert world.results == ["moon means nothing."]


def test_who_allows_a_tool_for_good_is_asked_once(browser: Browser, world: World):
    begin(browser, world, "look_up")
    for word in ("moon", "sun"):
        world.script.add("", ("look_up", {"word": word}))
    world.script.add("Nothing.")
    browser.say("What is there?")
    browser.press("Always run this tool")
    wait_for_answer(browser, "Nothing.")
    assert world.server.ran == ["moon", "sun"]
    browser.click("[aria-haspopup=dialog]")
    browser.wait(lambda: "Runs without asking." in browser.text(".tool-chooser"))
    # In another conversation nothing is switched on.
    browser.press("Close")
    browser.press("New conversation (Alt+N)")
    browser.wait(lambda: browser.one("[aria-haspopup=dialog]").get_attribute("title") == "Tools")
    browser.complaints()


def test_what_is_refused_does_not_run(browser: Browser, world: World):
    begin(browser, world, "look_up")
    world.script.add("", ("look_up", {"word": "moon"}), ("look_up", {"word": "sun"}))
    world.script.add("A pity.", tools=False)
    browser.say("What is there?")
    browser.press("Don't run")
    wait_for(browser, "Calls look_up: not allowed", "Calls look_up: may it run?")
    browser.press("Never run this tool")
    wait_for_answer(browser, "A pity.")
    assert world.server.ran == []
    assert world.results == ["The user does not allow this call."] * 2
    world.script.clear()
    browser.say("And now?")
    browser.wait(lambda: world.script.requests)
    assert world.script.requests[-1]["tools"] == []
    browser.wait_for_end()


def test_the_model_is_told_what_fails_and_what_is_left_out(browser: Browser, world: World):
    begin(browser, world, "fail", "long", "hostile")
    world.script.add("", ("fail", {}), ("long", {}), ("hostile", {}))
    world.script.add("Well.")
    browser.say("What is there?")
    for n in range(3):
        browser.wait(lambda n=n: sum("may it" not in one and "has not" not in one for one in summaries(browser)) == n)
        browser.press("Run once")
    wait_for_answer(browser, "Well.")
    assert summaries(browser) == ["Calls fail: failed", "Calls long: done", "Calls hostile: done"]
    failed, long, hostile = world.results
    assert failed.startswith("The tool reports an error: ")
    assert long == "x" * 16_384 + f"\n[{mcp_over_http.LONG - 16_384} more characters are left out]"
    assert hostile == mcp_over_http.HOSTILE
    # A stranger's text is text.
    assert browser.js("return window.hacked") is None
    assert browser.all(".calls img") == []
    assert "\u202e" not in browser.text(".calls > :last-child")


def test_a_call_that_was_asked_for_before_a_reload_has_not_run(browser: Browser, world: World):
    begin(browser, world, "look_up")
    world.script.add("", ("look_up", {"word": "moon"}))
    world.script.add("Nothing.")
    browser.say("What is there?")
    wait_for(browser, "Calls look_up: may it run?")
    browser.wait(lambda: any("calls" in turn for turn in browser.stored()["turns"].values()))
    browser.driver.refresh()
    wait_for(browser, "Calls look_up: has not run")
    assert not browser.one(".choices:not([hidden])")
    browser.press("Continue this answer")
    browser.press("Run once")
    wait_for_answer(browser, "Nothing.")
    assert world.server.ran == ["moon"]


@pytest.mark.parametrize("at", ["asked", "running"])
def test_escape_ends_a_call(browser: Browser, world: World, at: str):
    begin(browser, world, "wait")
    world.server.waits.clear()
    world.server.cancelled.clear()
    world.script.add("", ("wait", {}))
    browser.say("What is there?")
    wait_for(browser, "Calls wait: may it run?")
    if at == "running":
        browser.press("Run once")
        wait_for(browser, "Calls wait: runs…")
        assert world.server.waits.wait(60)
    browser.one(".composer textarea").send_keys(Keys.ESCAPE)
    wait_for(browser, "Calls wait: has not run")
    browser.wait_for_end()
    assert "Continue this answer" in browser.text(".answer .note")
    assert at == "asked" or world.server.cancelled.wait(60)
    assert len(world.script.requests) == 1
    # Who goes on is asked again.
    browser.press("Continue this answer")
    wait_for(browser, "Calls wait: may it run?")
    world.script.add("So be it.")
    browser.press("Don't run")
    wait_for_answer(browser, "So be it.")


def test_calls_end_at_a_bound(browser: Browser, world: World):
    begin(browser, world, "look_up")
    for _ in range(10):
        world.script.add("", ("look_up", {"word": "moon"}))
    browser.say("What is there?")
    browser.press("Always run this tool")
    wait_for_answer(browser, "Fine.")
    assert len(world.server.ran) == 8
    assert [len(request["tools"]) for request in world.script.requests] == [1] * 8 + [0]


def test_the_daemons_own_tools_are_there(browser: Browser, world: World):
    begin(browser, world, "status")
    world.script.add("", ("status", {}))
    world.script.add("It is there.")
    browser.say("Which models are there?")
    browser.wait(lambda: "this server" in browser.text(".calls"))
    browser.press("Run once")
    wait_for_answer(browser, "It is there.")
    assert "model" in world.results[0]


def test_servers_are_added_and_removed_as_far_as_the_operator_allows(browser: Browser, world: World):
    browser.start(world.daemon.http)
    choose(browser)
    for wrong, words in (
        ("ftp://box/mcp", "This is no address of a server."),
        ("https://elsewhere.example/mcp", "--page-tool-servers https://elsewhere.example/mcp"),
    ):
        browser.one("#tool-server").clear()
        browser.one("#tool-server").send_keys(wrong, Keys.ENTER)
        browser.wait(lambda words=words: words in browser.text(".adding .problem"))
    browser.one("#tool-server").clear()
    browser.one("#tool-server").send_keys("/nothing", Keys.ENTER)
    browser.wait(lambda: "can't be had" in browser.text(".servers section:nth-child(4)"))
    for scheme, width in (("light", 1280), ("dark", 320)):
        with browser.screen(width, 640, scheme):
            assert browser.violations() == []
            browser.shoot(f"tools-{scheme}")
    browser.click(".servers section:nth-child(4) [aria-label^=Remove]")
    browser.wait(lambda: len(browser.all(".servers section")) == 3)
    assert browser.js("return localStorage.getItem('umaserve.tool_servers')") == "[]"
    assert "CORS" in browser.text(".servers section:nth-child(3)")
    browser.complaints()


def test_a_file_brings_calls_and_allows_none(browser: Browser, world: World, tmp_path: Path):
    browser.start(world.daemon.http)
    call = {"id": "c", "name": "look_up", "arguments": "{}", "state": "asked", "result": "<b>moon</b>"}
    browser.imports(tmp_path, "I look.", calls=[call])
    wait_for(browser, "Calls look_up: done")
    assert browser.text(".calls pre:last-child") == "<b>moon</b>"
    assert "tools" not in browser.stored()
