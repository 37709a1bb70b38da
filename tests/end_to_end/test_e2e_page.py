"""The page in a real browser, on the real daemon and model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser import BROWSER, DRIVER, MISSING, Browser, CuttingProxy
from daemon import Daemon
from selenium.webdriver import Keys

from umaserve.access.keys import KeyFile

pytestmark = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)

MARKDOWN = (
    "# Tides\n\nTwo **bulges**, see [NOAA](https://oceanservice.noaa.gov/).\n\n1. near\n2. far\n   - left behind\n\n"
    "| Day | Range |\n|:--|--:|\n| 1 | 5.1 m |\n\n```python\nprint('<b>')\n```\n\n> quoted\n\n"
    '<tool_call>\n{"name": "tide_table", "arguments": {}}\n</tool_call>\n\n\u0645\u0631\u062d\u0628\u0627\n'
)

AWAY = """
window.plain = [window.fetch, WebSocket];
window.fetch = () => Promise.reject(new TypeError("of the test"));
window.WebSocket = class extends WebSocket {
  constructor(...a) {
    super(...a);
    this.close();
  }
};
"""
"""Lets the page reach no server any more."""


# -- talking -----------------------------------------------------------------------------------------------------


def test_a_conversation(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=24)
    browser.say("What is the Moon?")
    browser.wait_for_end()
    browser.say("And the Sun?")
    browser.wait(lambda: len(browser.all(".answer")) == 2)
    browser.wait_for_end()
    first, second = browser.answers()
    assert first["text"] in browser.text(".turns")
    config = [message for message in browser.js("return window.wire") if message.get("type") == "config"][-1]
    roles = [(turn["role"], turn["content"]) for turn in config["prompt"]]
    assert roles == [("user", "What is the Moon?"), ("assistant", first["text"]), ("user", "And the Sun?")]
    figures = browser.js("return [...document.querySelectorAll('.figures')].at(-1).textContent")
    for words in (
        "first token in ",
        " tokens/s",
        " prompt tokens, ",
        " of them cached",
        f"{second['stats']['tokens']} w",
    ):
        assert words in figures
    # It is there again when the page is opened again.
    browser.driver.refresh()
    browser.click(".conversations .open")
    browser.wait(lambda: len(browser.all(".answer")) == 2)
    assert browser.text(".turn.user .text") == "What is the Moon?"


def test_an_answer_is_paused_goes_on_and_is_stopped(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4000, ignore_eos=True)
    browser.say("Tell a long story.")
    browser.wait(lambda: browser.text(".answer .markdown"))
    browser.press("Pause")
    browser.wait(lambda: browser.one(".answer[data-phase=paused]"))
    held = browser.text(".answer .markdown")
    received = browser.js("return window.wire.length")
    assert daemon.metrics()["active_sessions"] == 1
    # Whatever came after the acknowledgement would have come before another connection's answer.
    daemon.ask(max_tokens=4)
    assert (browser.text(".answer .markdown"), browser.js("return window.wire.length")) == (held, received)
    browser.press("Go on")
    browser.wait(lambda: len(browser.text(".answer .markdown")) > len(held))
    browser.press("Stop")
    browser.wait_for_end()
    assert browser.text(".figures").count("stopped") == 1
    assert browser.text(".answer .markdown").startswith(held[:20])


def test_who_stops_at_once_asks_nothing(browser: Browser, daemon: Daemon):
    browser.start(daemon.http)
    browser.one(".composer textarea").send_keys("Tell a long story.")
    browser.wait(lambda: browser.one(".composer .primary:enabled"))
    at_once = "document.querySelector('.composer .primary').click();"
    browser.js(at_once + "dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', cancelable: true }))")
    browser.wait_for_end()
    (answer,) = browser.answers()
    assert (answer["text"], answer["end"]) == ("", "cancelled")
    assert browser.js("return window.wire") == []


def test_a_slider_acts_on_the_running_answer_and_is_marked_along_it(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4000, ignore_eos=True)
    browser.say("Tell a long story.")
    browser.wait(lambda: browser.text(".answer .markdown"))
    for value in ("1.5", "0.2"):
        browser.set("#set-temperature", value)
        browser.wait(lambda value=value: f"temperature {value}" in browser.text(".answer"))
    browser.press("Stop")
    browser.wait_for_end()
    (answer,) = browser.answers()
    assert [mark["values"] for mark in answer["marks"]] == [{"temperature": 1.5}, {"temperature": 0.2}]
    # Where the daemon took it is where it is marked.
    assert answer["marks"][0]["at"] == browser.modified_at()[0]
    assert [mark.text for mark in browser.all(".mark")] == ["temperature 1.5", "temperature 0.2"]
    assert browser.one(".under-1:not(.mark)")


def test_another_token_begins_a_branch(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=24)
    browser.js("document.querySelector('#probabilities').click()")
    browser.say("What is the Moon?")
    browser.wait_for_end()
    (answer,) = browser.answers()
    index = next(i for i, token in enumerate(answer["tokens"]) if i > 3 and len(token["others"]) > 3)
    browser.one(f"[data-token='{index}']").click()
    browser.wait(lambda: browser.one(".alternatives:popover-open button:enabled"))
    assert len(browser.all(".alternatives button:disabled")) >= 1
    browser.one(".alternatives button:enabled").click()
    browser.wait(lambda: browser.text(".branch") == "2 / 2")
    browser.wait_for_end()
    before, after = browser.answers()
    kept = before["tokens"][index - 1]["end"]
    others = {text for text, _ in before["tokens"][index]["others"]}
    piece = after["text"][kept : after["tokens"][index]["end"]]
    assert after["text"][:kept] == before["text"][:kept]
    assert piece in others - {before["text"][kept : before["tokens"][index]["end"]]}
    assert after["stats"]["cached"] > 0
    browser.press("Branch before")
    browser.wait(lambda: browser.text(".branch") == "1 / 2")
    # Who walks by the keyboard goes on from the branch that is there now.
    assert browser.js("return document.activeElement.ariaLabel") == "Branch after"
    assert "".join(token.text for token in browser.all(".token")).startswith(before["text"][:kept].strip()[:8])


def test_an_answer_is_continued_asked_for_again_and_deleted(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=8)
    browser.say("Tell a long story.")
    browser.wait_for_end()
    (answer,) = browser.answers()
    browser.press("Continue this answer")
    browser.wait(lambda: browser.stored()["turns"][answer["id"]]["text"] != answer["text"])
    browser.wait_for_end()
    (longer,) = browser.answers()
    assert longer["text"].startswith(answer["text"])
    browser.press("Answer again")
    browser.wait(lambda: browser.text(".branch") == "2 / 2")
    browser.wait_for_end()
    browser.press("Edit this question, as a branch")
    browser.press("Cancel")
    browser.wait(lambda: not browser.one(".editor"))
    assert browser.js("return document.activeElement.ariaLabel") == "Edit this question, as a branch"
    browser.press("Edit this question, as a branch")
    area = browser.wait(lambda: browser.one(".editor textarea"))
    area.send_keys(Keys.CONTROL, "a")
    area.send_keys("Tell a joke.", Keys.ENTER)
    browser.wait(lambda: browser.text(".turn.user .text") == "Tell a joke.")
    browser.wait_for_end()
    assert len(browser.answers()) == 3
    browser.press("Delete from here on")
    browser.wait(lambda: browser.text(".turn.user .text") == "Tell a long story.")
    assert len(browser.answers()) == 2


def test_an_answer_is_edited_as_a_branch(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http, max_tokens=4)
    browser.imports(tmp_path, "Because.")
    browser.press("Edit the answer")
    area = browser.wait(lambda: browser.one(".answer .editor textarea"))
    area.send_keys(Keys.CONTROL, "a")
    area.send_keys("Why not?", Keys.ENTER)
    browser.wait(lambda: browser.text(".branch") == "2 / 2")
    browser.wait(lambda: browser.text(".answer .markdown") == "Why not?")
    browser.say("Go on")
    browser.wait(lambda: len(browser.all(".answer")) == 2)
    browser.wait_for_end()
    sent = [message for message in browser.js("return window.wire") if message.get("type") == "config"][-1]
    assert [turn["content"] for turn in sent["prompt"]] == ["Why?", "Why not?", "Go on"]


def test_seed_stop_length_and_thoughts_are_sent_as_they_are_set(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=8)
    for name, value in (("seed", "7"), ("stop", "END\nSTOP"), ("enable_thinking", "off"), ("reasoning_budget", "16")):
        browser.set(f"#set-{name}", value, "change")
    browser.set("#set-top_k", "5")
    browser.set("#set-max_tokens", "0")
    browser.set("#set-temperature", "0.5")
    browser.say("Say yes.")
    browser.wait(lambda: browser.text(".answer .markdown"))
    browser.press("Stop")
    browser.wait_for_end()
    (sent,) = [message for message in browser.js("return window.wire") if message.get("type") == "config"]
    asked = sent["parameters"]
    assert (asked["seed"], asked["stop"], asked["top_k"], asked["max_tokens"]) == (7, ["END", "STOP"], 5, 1 << 24)
    assert (sent["options"]["enable_thinking"], sent["options"]["reasoning_budget"]) == (False, 16)
    assert "enable_thinking" not in asked
    # How full the context is.
    gauge = browser.one("meter.gauge")
    assert gauge.is_displayed()
    assert gauge.get_attribute("title").endswith("tokens that the model can read")
    browser.set("#set-seed", "", "change")
    browser.set("#set-max_tokens", "16")
    browser.press("Answer again")
    browser.wait(lambda: browser.text(".branch") == "2 / 2")
    browser.wait_for_end()
    asked = [message for message in browser.js("return window.wire") if message.get("type") == "config"][-1][
        "parameters"
    ]
    assert ("seed" in asked, asked["max_tokens"]) == (False, 16)


@pytest.mark.parametrize("lose", [CuttingProxy.cut, CuttingProxy.silence], ids=["cut", "silent"])
def test_a_lost_connection_is_resumed_where_it_was(browser: Browser, daemon: Daemon, lose):
    with CuttingProxy(daemon.http) as proxy:
        browser.start(proxy.http, max_tokens=160, ignore_eos=True)
        browser.say("Tell a long story.")
        browser.wait(lambda: browser.text(".answer .markdown"))
        assert lose(proxy) > 0
        browser.wait_for_end()
        (answer,) = browser.answers()
    wire = browser.js("return window.wire")
    assert [message["type"] for message in wire].count("resume") == 1
    (completion,) = [message for message in wire if message["type"] == "completion"]
    assert answer["text"] == completion["generated_text"]
    assert answer["stats"]["tokens"] == 160


def test_an_answer_goes_on_while_one_looks_elsewhere(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=200, ignore_eos=True)
    browser.say("Tell a long story.")
    browser.wait(lambda: browser.text(".answer .markdown"))
    place = browser.driver.current_url
    assert "/#/c/" in place
    for link, view in (("Compare", ".compare"), ("API", ".docs")):
        browser.driver.find_element("link text", link).click()
        browser.wait(lambda view=view: browser.one(view))
    seen = browser.js("return window.wire.length")
    browser.wait(lambda: browser.js("return window.wire.length") > seen)
    browser.driver.find_element("link text", "Chat").click()
    browser.wait(lambda: browser.text(".answer .markdown"))
    assert browser.driver.current_url == place
    browser.wait_for_end()
    (answer,) = browser.answers()
    assert (answer["stats"]["tokens"], answer["end"]) == (200, "length")


def test_a_conversation_has_an_address(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4)
    for text in ("What is the Moon?", "What is the Sun?"):
        browser.press("New conversation (Alt+N)")
        browser.wait(lambda: not browser.all(".turn"))
        browser.say(text)
        browser.wait_for_end()

    def shown() -> str:
        return browser.text(".turn.user .text")

    sun = browser.driver.current_url
    browser.driver.back()
    browser.wait(lambda: shown() == "What is the Moon?")
    browser.driver.refresh()
    browser.wait(lambda: shown() == "What is the Moon?")
    browser.driver.get(sun)
    browser.wait(lambda: shown() == "What is the Sun?")
    browser.driver.get(f"http://{daemon.http}/#/c/unknown")
    browser.wait(lambda: "not in this browser" in browser.text(".notice"))
    browser.wait(lambda: browser.driver.current_url.endswith("/#chat"))
    assert browser.complaints() == []


@pytest.mark.parametrize("paused", [False, True], ids=["writing", "paused"])
def test_an_answer_is_resumed_after_a_reload(browser: Browser, daemon: Daemon, paused: bool):
    browser.start(daemon.http, max_tokens=300, ignore_eos=True)
    browser.say("Tell a long story.")
    browser.wait(lambda: browser.text(".answer .markdown"))
    if paused:
        browser.press("Pause")
        browser.wait(lambda: browser.one(".answer[data-phase=paused]"))
        browser.wait(lambda: any(t.get("request", {}).get("paused") for t in browser.stored()["turns"].values()))
    browser.driver.refresh()
    if paused:
        browser.wait(lambda: browser.one(".answer[data-phase=paused]"))
        browser.press("Go on")
    browser.wait_for_end()
    (answer,) = browser.answers()
    wire = browser.js("return window.wire")
    assert [message["type"] for message in wire if message["type"] in ("config", "resume")] == ["resume"]
    (completion,) = [message for message in wire if message["type"] == "completion"]
    assert answer["text"] == completion["generated_text"]
    assert (answer["stats"]["tokens"], "request" in answer) == (300, False)
    assert browser.js("return sessionStorage.length") == 0


def test_an_answer_of_a_closed_tab_is_not_finished_and_can_be_continued(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4000, ignore_eos=True)
    browser.say("Tell a long story.")
    browser.wait(lambda: browser.text(".answer .markdown"))
    browser.wait(lambda: any(turn["text"] for turn in browser.stored()["turns"].values() if "request" in turn))
    browser.js("sessionStorage.clear()")
    browser.driver.refresh()
    browser.wait(lambda: "Not finished" in browser.text(".answer .note"))
    begun = browser.text(".answer .markdown")
    browser.press("Continue this answer")
    browser.wait(lambda: len(browser.text(".answer .markdown")) > len(begun))
    browser.press("Stop")
    browser.wait_for_end()
    assert browser.text(".answer .markdown").startswith(begun)
    assert browser.text(".answer .note") == ""


def test_a_server_that_is_away_is_found_again(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4)
    browser.js(AWAY)
    browser.say("Are you there?")
    browser.wait(lambda: browser.text(".answer .note") == "The server can't be reached. Ask again when it is back.")
    browser.wait(lambda: browser.text(".problem") == "The server can't be reached.")
    browser.js("[window.fetch, window.WebSocket] = window.plain")
    browser.wait(lambda: browser.text(".problem") == "")
    browser.press("Answer again")
    browser.wait(lambda: browser.text(".branch") == "2 / 2")
    browser.wait_for_end()
    assert all("WebSocket" in complaint for complaint in browser.complaints())


def test_what_can_not_be_loaded_is_loaded_when_the_server_is_back(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4)
    browser.driver.execute_cdp_cmd("Network.enable", {})
    browser.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/page/*", "*/v1/models"]})
    browser.say("Are you there?")
    browser.wait(lambda: browser.text(".answer .note") == "The server can't be reached. Ask again when it is back.")
    browser.js("location.hash = '#compare'")
    browser.wait(lambda: browser.text(".problem") == "The server can't be reached." and not browser.one(".view > *"))
    browser.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    browser.wait(lambda: browser.one(".compare") and browser.text(".problem") == "")
    browser.js("location.hash = '#chat'")
    browser.click(".conversations .open")
    browser.press("Answer again")
    browser.wait(lambda: browser.text(".branch") == "2 / 2" and browser.text(".answer .markdown"))
    browser.wait_for_end()
    assert all("ERR_BLOCKED_BY_CLIENT" in complaint for complaint in browser.complaints())


def test_an_error_says_what_to_do(browser: Browser, daemon: Daemon):
    browser.start(daemon.http)
    browser.set(".composer textarea", "word " * 20_000)
    browser.press("Send")
    browser.wait(lambda: browser.one(".answer[data-phase=failed]"))
    assert "Delete some turns, or begin a new one." in browser.text(".answer .note")


def test_one_reads_in_peace_while_the_answer_grows(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4000, ignore_eos=True)
    browser.say("Tell a long story.")
    scroller = "document.querySelector('.scroller')"
    browser.wait(lambda: browser.js(f"return {scroller}.scrollTop > 300"))
    browser.js(f"{scroller}.scrollTop = 10")
    browser.wait(lambda: browser.one(".to-end").is_displayed())
    seen = len(browser.text(".answer"))
    browser.wait(lambda: len(browser.text(".answer")) > seen + 200)
    assert browser.js(f"return {scroller}.scrollTop") == 10
    browser.one(".to-end").click()
    browser.wait(lambda: browser.js(f"return {scroller}.scrollTop > 10"))
    browser.press("Stop")
    browser.wait_for_end()


def test_the_keyboard_does_it_all(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4000, ignore_eos=True)

    def keys(*pressed: str) -> None:
        browser.driver.switch_to.active_element.send_keys(*pressed)

    browser.js("document.querySelector('.composer textarea').focus()")
    keys("Tell a long story.", Keys.ENTER)
    browser.wait(lambda: browser.text(".answer .markdown"))
    keys(Keys.ALT, "p")
    browser.wait(lambda: browser.one(".answer[data-phase=paused]"))
    keys(Keys.ALT, "p")
    browser.wait(lambda: browser.one(".answer[data-phase=writing]"))
    keys(Keys.ESCAPE)
    browser.wait_for_end()
    keys(Keys.ALT, "n")
    browser.wait(lambda: not browser.all(".turn"))
    assert browser.driver.switch_to.active_element.get_attribute("aria-label") == "Message"


def test_two_tabs_know_of_each_others_conversations(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4)
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    second = browser.driver.current_window_handle
    browser.open(daemon.http)
    browser.driver.switch_to.window(first)
    browser.say("A question of the first tab")
    browser.wait_for_end()
    browser.driver.switch_to.window(second)
    browser.wait(lambda: browser.text(".conversations .open") == "A question of the first tab")
    # Whoever writes in one and then in the other loses nothing.
    browser.one(".conversations .open").click()
    for count, (tab, text) in enumerate([(second, "One of the second tab"), (first, "And one of the first")], 1):
        browser.driver.switch_to.window(tab)
        browser.wait(lambda count=count: len(browser.all(".answer")) == count)
        browser.say(text)
        browser.wait(lambda count=count: len(browser.all(".answer")) == count + 1)
        browser.wait_for_end()
    assert len(browser.stored()["turns"]) == len(browser.all(".turn")) == 6
    browser.driver.switch_to.window(second)
    browser.wait(lambda: len(browser.all(".turn")) == 6)
    browser.js("document.querySelector('.turn.user [aria-label^=Delete]').click()")
    browser.wait(lambda: not browser.all(".turn"))
    assert browser.complaints() == []
    browser.driver.close()
    browser.driver.switch_to.window(first)


def test_a_key_is_asked_for_and_ends_with_the_tab(browser: Browser, own_daemon, tmp_path: Path):
    file = str(tmp_path / "keys.json")
    key = KeyFile(file, missing_ok=True).add("ann")
    daemon = own_daemon("--http", "127.0.0.1:0", "--api-keys", file)
    browser.open(daemon.http)
    for given, is_good in (("umak_wrong", False), (key, True)):
        browser.wait(lambda: browser.one("dialog[open] #key")).send_keys(given)
        browser.press("Use this key")
        if not is_good:
            browser.wait(lambda: "does not know this key" in browser.text("dialog"))
    browser.wait(lambda: not browser.one("dialog[open]") and browser.text(".model"))
    browser.set("#set-temperature", "0")
    browser.set("#set-max_tokens", "16")
    browser.say("What is the Moon?")
    browser.wait_for_end()
    assert browser.js("return sessionStorage.length") == 1
    assert key not in browser.js("return JSON.stringify(localStorage)") + json.dumps(browser.stored())
    assert "key=ann" in daemon.logs
    # The browser says of the first requests that they were refused.
    assert all("401" in complaint for complaint in browser.complaints())


def test_what_is_copied_over_plain_http_from_another_machine_is_on_the_clipboard(
    browser: Browser, own_daemon, tmp_path: Path
):
    daemon = own_daemon("--http", "127.0.0.1:0", "--allow-host", "other.test")
    browser.open(f"other.test:{daemon.http.rpartition(':')[2]}")
    assert browser.js("return [isSecureContext, navigator.clipboard === undefined]") == [False, True]
    browser.imports(tmp_path, "```python\nprint(1)\n```\n", marks=[{"at": 15, "values": {"top_p": 0.5}}])
    copies = {"Copy": "print(1)", "Copy the question": "Why?", "Copy the answer": "```python\nprint(1)"}
    for name, copied in copies.items():
        browser.press(name)
        area = browser.one(".composer textarea")
        area.clear()
        area.send_keys(Keys.CONTROL, "v")
        browser.wait(lambda area=area, copied=copied: area.get_property("value").strip().startswith(copied))
    browser.wait(lambda: browser.text(".notice") == "Copied.")
    # The browser says of the page that this machine is another one.
    assert all("Cross-Origin-Opener-Policy" in complaint for complaint in browser.complaints())


# -- what is shown -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (320, 640)], ids=["desk", "phone"])
def test_it_is_for_everybody(browser: Browser, daemon: Daemon, tmp_path: Path, scheme: str, size: tuple[int, int]):
    with browser.screen(*size, scheme):
        browser.open(daemon.http)
        browser.driver.refresh()
        browser.wait(lambda: browser.one(".composer textarea"))
        assert browser.violations() == []
        marks = [{"at": 30, "values": {"temperature": 1.5}}, {"at": 60, "values": {"top_p": 0.5}}]
        browser.imports(tmp_path, MARKDOWN, marks=marks, thoughts="Tides.", end="stop")
        browser.press("Settings")
        assert browser.violations() == []
        assert browser.js("return document.documentElement.scrollWidth") <= size[0]
        for tag in ("h3", "strong", "a", "ol > li > ul", "table td.end", "figure pre", "blockquote", ".call"):
            assert browser.one(f".answer .markdown {tag}"), tag
        assert (
            browser.js("return getComputedStyle(document.querySelector('.markdown > :last-child')).direction") == "rtl"
        )


def test_what_is_seldom_used_of_an_answer_is_in_its_menu(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=3, ignore_eos=True)
    browser.say("What is the Moon?")
    browser.wait_for_end()
    browser.click(".answer [aria-label=More]")
    browser.wait(lambda: browser.driver.switch_to.active_element.text == "Continue this answer")
    assert browser.violations() == []
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    browser.wait(lambda: browser.driver.switch_to.active_element.accessible_name == "More")
    figures = browser.one(".answer .figures")
    assert figures.text.endswith(" tokens/s · 3 written · cut at its length")
    figures.find_element("css selector", "summary").click()
    browser.wait(lambda: " of them cached" in figures.text)


def test_an_empty_page_has_examples(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4)
    example = browser.wait(lambda: browser.one(".examples button"))
    text = example.text
    example.click()
    browser.wait(lambda: browser.one(".composer textarea").get_property("value") == text)
    browser.press("Send")
    browser.wait_for_end()
    assert browser.text(".turn.user .text") == text
    assert not browser.one(".examples").is_displayed()


def test_on_a_phone_what_one_touches_is_large_and_the_head_is_one_row(browser: Browser, daemon: Daemon):
    with browser.screen(375, 740):
        browser.start(daemon.http)
        sizes = browser.js(
            "return [...document.querySelectorAll('header button, .composer button, .examples button')]"
            ".filter((b) => b.offsetParent).map((b) => [b.ariaLabel ?? b.textContent, b.offsetWidth, b.offsetHeight])"
        )
        assert len(sizes) > 8
        assert [size for size in sizes if min(size[1:]) < 44] == []
        assert browser.one("header").size["height"] < 60
        browser.press("Chat ▾")
        browser.wait(lambda: browser.one("header nav").is_displayed())
        browser.driver.find_element("link text", "Compare").click()
        browser.wait(lambda: browser.one(".compare") and not browser.one("header nav").is_displayed())
        assert browser.violations() == []


def test_on_a_phone_one_drawer_is_open_at_a_time(browser: Browser, daemon: Daemon):
    with browser.screen(320, 640):
        browser.open(daemon.http)
        browser.driver.refresh()
        browser.wait(lambda: browser.one(".composer textarea"))
        for name in ("Conversations", "Settings", "Conversations"):
            browser.press(name)
            browser.wait(lambda name=name: [each.accessible_name for each in browser.all("aside.open")] == [name])


def test_what_is_loaded_before_one_writes_is_small(browser: Browser, daemon: Daemon):
    browser.driver.get("about:blank")
    browser.open(daemon.http)
    browser.wait(lambda: browser.one(".composer textarea"))
    sizes = browser.js(
        "return performance.getEntriesByType('resource').filter((e) => e.name.includes('/page/'))"
        ".concat(performance.getEntriesByType('navigation')).map((e) => [e.name, e.encodedBodySize])"
    )
    assert len(sizes) > 10
    # As it is sent: compressed.
    assert sum(size for _, size in sizes) < 45_000, sizes


HOSTILE = [
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>",
    "<svg/onload=alert(1)><iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "[a](javascript:alert(1)) [b](data:text/html,<script>1</script>) [c](JaVaScRiPt:1) [d](//evil) [e](vbscript:1)",
    '[a](https://ok.example/"onmouseover=alert(1)) ![x](https://evil.example/pixel.png) <a href=javascript:1>x</a>',
    "```<script>\n</code></pre><script>window.hacked = 1</script>\n",
    "| <b> | <script> |\n|---|---|\n| </table><script>window.hacked = 1</script> | x |",
    '<tool_call>\n{"name": "<img src=x onerror=alert(1)>"}\n</tool_call>',
    "<br onclick=x> <BR/> &lt;br&gt;",
    '&lt;script&gt;window.hacked = 1&lt;/script&gt; <javascript:alert(1)> <https://ok.example/"onclick=x>',
    "\u001b[31mred\u001b[0m \u202egnp.exe\u202c \u2066hidden\u2069 \u0000 \u0007",
]
"""What a model may be made to say."""
ENDLESS = [
    "x",
    "*",
    "_a_ ",
    "`",
    "` `` ",
    "[",
    "](",
    "![",
    "> ",
    "- ",
    "- a\n",
    "|",
    "|a|\n|-|\n",
    "\\*",
    "1. ",
    "\n",
    "[a](http://b",
    "\\(",
    "\\[",
    "\\[\n",
    "$$\n",
    "$a",
    "&",
    "<https://a",
    "a\n--\n",
    "    a\n",
    "\\begin{align}\n",
]
DRAW = """
const { AnswerText } = await import("/page/answers/answer_text.js");
const [text, shaded, pieces] = values;
const node = document.createElement("div");
document.body.append(node);
const drawn = new AnswerText(node);
const whole = text.length === 2 && Array.isArray(text) ? text[0].repeat(text[1]) : text;
for (let i = 1; i <= pieces; i += 1) {
  const grown = whole.slice(0, Math.ceil((whole.length * i) / pieces));
  const tokens = [...grown].map((_, at) => ({ end: at + 1, logprob: -1, others: [] }));
  drawn.draw({ text: grown, tokens: shaded ? tokens : [], marks: [] }, shaded);
}
const all = [...node.querySelectorAll("*")];
const found = {
  text: node.textContent.slice(0, 4000),
  html: node.innerHTML.slice(0, 4000),
  tags: [...new Set(all.map((one) => one.localName))],
  attributes: [...new Set(all.flatMap((one) => one.getAttributeNames()))],
  addresses: all.filter((one) => one.href).map((one) => one.href),
};
node.remove();
return found;
"""
MARKED = """
const { AnswerText } = await import("/page/answers/answer_text.js");
const [text, grows] = values;
return [...text].map((_, at) => {
  const node = document.createElement("div");
  const drawn = new AnswerText(node);
  const marks = [{ at, values: { temperature: 1 } }];
  if (grows) {
    for (let end = at; end < text.length; end += 1) {
      drawn.draw({ text: text.slice(0, end), tokens: [], marks }, false);
    }
  }
  drawn.draw({ text, tokens: [], marks }, false);
  const found = document.createRange();
  const all = node.querySelectorAll(".mark");
  if (all.length !== 1) return `${all.length} marks`;
  for (const name of node.querySelectorAll("figcaption, summary")) name.remove();
  found.selectNodeContents(node);
  found.setEndBefore(all[0]);
  return found.toString();
});
"""
"""Marks each place of a text in turn; returns what is to be seen before each mark."""
TAGS = {
    *("p", "h3", "h4", "h5", "h6", "hr", "ul", "ol", "li", "blockquote", "strong", "em", "del", "a", "code"),
    "pre",
    "br",
}
TAGS |= {
    *("figure", "figcaption", "span", "button", "details", "summary", "div", "table", "thead", "tbody", "tr", "th")
}
TAGS |= {"td"}
ATTRIBUTES = {
    *("dir", "class", "type", "tabindex", "role", "aria-label", "start", "data-language", "data-token"),
    "href",
}
ATTRIBUTES |= {"title", "target", "rel"}


@pytest.mark.parametrize("shaded", [False, True])
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_what_acts(browser: Browser, daemon: Daemon, text: str, shaded: bool):
    browser.open(daemon.http)
    for pieces in (1, 7):
        found = browser.module(DRAW, text, shaded, pieces)
        assert set(found["tags"]) <= TAGS
        assert set(found["attributes"]) <= ATTRIBUTES
        assert all(address.startswith(("https://", "http://")) for address in found["addresses"])
        assert not any(char in found["text"] for char in "\u001b\u202e\u2066\u0000\u0007")
    assert browser.js("return window.hacked === undefined")


@pytest.mark.parametrize("piece", ENDLESS)
def test_a_megabyte_of_anything_is_drawn(browser: Browser, daemon: Daemon, piece: str):
    browser.open(daemon.http)
    assert browser.module(DRAW, [piece, 1_000_000 // len(piece)], False, 1)["tags"] is not None


@pytest.mark.parametrize("shaded", [False, True])
def test_text_that_grows_is_drawn_as_if_it_came_at_once(browser: Browser, daemon: Daemon, shaded: bool):
    browser.open(daemon.http)
    at_once, grown = (browser.module(DRAW, MARKDOWN, shaded, pieces)["html"] for pieces in (1, len(MARKDOWN)))
    assert at_once == grown


@pytest.mark.parametrize("grows", [False, True])
def test_a_mark_stands_before_the_first_text_written_with_it(browser: Browser, daemon: Daemon, grows: bool):
    browser.open(daemon.http)
    text = f"**Bold** and `code`, [a](https://ok.example/x)  \n***\n```js\n1\n```\n\n{MARKDOWN}End"
    before = browser.module(MARKED, text, grows)
    plain = before[-1]
    assert all(plain.startswith(each) for each in before)
    assert [len(each) for each in before] == sorted(len(each) for each in before)
    assert (before[0], before[text.index("** and") - 1], before[text.index("** and")]) == ("", "Bol", "Bold")
    assert before[text.index("/x)")] == before[text.index("  \n")] == "Bold and code, a"
    assert plain.endswith("\u0645\u0631\u062d\u0628\u0627\nEn")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a **b *c* d** e", '<p dir="auto">a <strong>b <em>c</em> d</strong> e</p>'),
        ("snake_case_name 2 * 3 * 4", '<p dir="auto">snake_case_name 2 * 3 * 4</p>'),
        ("**open `code *` \\*", '<p dir="auto">**open <code>code *</code> *</p>'),
        ("- a\n\n  b\n- [x] c", None),
        ("a\nb", '<p dir="auto">a\nb</p>'),
        ("~~~\n```\n~~~\nafter", None),
        (
            "a<br>b &amp; &#60;i> &bogus; &valueOf;",
            '<p dir="auto">a<br>b &amp; &lt;i&gt; &amp;bogus; &amp;valueOf;</p>',
        ),
        ("Title\n=====\n\nSub\n---\nrest", '<h3 dir="auto">Title</h3><h4 dir="auto">Sub</h4><p dir="auto">rest</p>'),
        ("costs $5 or $6, or 7$", '<p dir="auto">costs $5 or $6, or 7$</p>'),
        ("#no heading\n\n####### none", '<p dir="auto">#no heading</p><p dir="auto">####### none</p>'),
    ],
)
def test_markdown(browser: Browser, daemon: Daemon, text: str, html: str | None):
    browser.open(daemon.http)
    found = browser.module(DRAW, text, False, 1)
    if html is not None:
        assert found["html"] == html
    elif text.startswith("-"):
        assert found["tags"] == ["ul", "li", "p", "span"]
    else:
        assert (found["tags"][0], found["tags"][-1], found["text"]) == ("figure", "p", "codeCopy```after")


def test_indented_code_and_an_address_in_brackets(browser: Browser, daemon: Daemon):
    browser.open(daemon.http)
    found = browser.module(DRAW, "So:\n\n    if a:\n\n        b\n\n<https://ok.example/x> <me@ok.example>", False, 1)
    assert found["text"] == "So:codeCopyif a:\n\n    bhttps://ok.example/x me@ok.example"
    assert found["addresses"] == ["https://ok.example/x", "mailto:me@ok.example"]


def test_formulas_are_set_and_code_has_its_colours(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    requests = "return performance.getEntriesByType('resource').filter((e) => e.name.includes('/vendor/')).length"
    assert browser.js(requests) == 0
    formulas = "\\( \\alpha \\) and\n\n$$\\frac{1}{2}$$\n\n\\[\n- a\n+ b\n\\].\n\n\\[\\undefined\\]\n\n"
    text = formulas + "```python\ndef f():\n    return 'x'\n```\n"
    browser.imports(tmp_path, text)
    browser.wait(lambda: len(browser.all(".answer .katex")) == 3)
    sources = "return [...document.querySelectorAll('.katex annotation')].map((e) => e.textContent.trim())"
    assert browser.js(sources) == ["\\alpha", "\\frac{1}{2}", "- a\n+ b\n."]
    assert browser.one(".answer div.math .katex-display")
    # What is no formula stands as it was written.
    assert "\\[\\undefined\\]" in browser.text(".answer .markdown")
    browser.wait(lambda: browser.js("return document.fonts.check('1rem KaTeX_Math')"))
    pieces = """
      const ranges = [...(CSS.highlights.get(arguments[0]) ?? [])];
      return ranges.map((r) => r.startContainer.data.slice(r.startOffset, r.endOffset));
    """
    browser.wait(lambda: browser.js(pieces, "code-keyword") == ["def", "return"])
    assert browser.js(pieces, "code-string") == ["'x'"]
    # Who walks through the tokens sees each as it was written.
    browser.js("document.querySelector('#probabilities').click()")
    browser.wait(lambda: not browser.one(".answer .katex") and "\\( \\alpha \\)" in browser.text(".answer .markdown"))
    browser.js("document.querySelector('#probabilities').click()")
    assert browser.complaints() == []


def test_no_formula_acts_or_takes_its_time(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    deep = "\\frac{1}{" * 300 + "2" + "}" * 300
    endless = "\\def\\a{\\a\\a}\\a"
    acts = "\\href{javascript:alert(1)}{x} \\includegraphics{https://evil.example/x.png}"
    browser.imports(tmp_path, f"$x$\n\n\\({acts}\\)\n\n\\({endless}\\)\n\n\\[{deep}\\]\n")
    browser.wait(lambda: browser.one(".answer .katex"))
    assert browser.all(".answer a") == browser.all(".answer img") == []
    assert endless in browser.text(".answer .markdown")
    assert browser.complaints() == []


def test_tokens_and_marks_of_a_file_that_are_nowhere_are_left_out(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    browser.js("document.querySelector('#probabilities').click()")
    tokens = [{"end": end, "logprob": "x", "others": []} for end in (3, 2, -1, 1e9)]
    browser.imports(tmp_path, "Moon and Sun", tokens=tokens, marks=[{"at": 5, "values": {}}, {"at": 1.5, "values": {}}])
    assert browser.text(".answer .markdown") == "Moon and Sun"
    assert browser.all(".token") == browser.all(".mark") == []


def test_a_file_that_is_no_export_is_refused(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.open(daemon.http)
    wrong = [{"format": "other"}, [], {"format": "umaserve-conversations", "conversations": [{"turns": {"a": {}}}]}]
    for number, value in enumerate(wrong):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(value))
        browser.js("document.querySelector('.notice').textContent = ''")
        browser.one("input[type=file]").send_keys(str(file))
        browser.wait(lambda: "not one of exported conversations" in browser.text(".notice"))
