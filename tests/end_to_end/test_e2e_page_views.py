"""The page's views beside the chat, in a real browser: the API's description, and comparing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from browser import BROWSER, DRIVER, MISSING, Browser
from daemon import Daemon
from selenium.webdriver import Keys
from selenium.webdriver.support.ui import Select

from umaserve.access.keys import KeyFile
from umaserve.daemon.http.pages import openapi
from umaserve.settings.model_files import default_model

pytestmark = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)

OPERATIONS = [(path, *each) for path, item in json.loads(openapi())["paths"].items() for each in item.items()]


def open_docs(browser: Browser, http: str, operation: str) -> str:
    """Open the description of an operation; returns the selector of its form."""
    browser.driver.get("about:blank")
    browser.driver.get(f"http://{http}/docs#{operation}")
    browser.wait(lambda: browser.one(f"#{operation}[open] .try"))
    return f"#{operation} .try"


def send(browser: Browser, form: str) -> None:
    browser.js("document.querySelector(arguments[0]).requestSubmit()", form)


def open_compare(browser: Browser, http: str, **settings: float) -> None:
    """Open the view with two columns, with these settings in both."""
    browser.driver.get("about:blank")
    browser.open(http, "compare")
    browser.wait(lambda: len(browser.all(".column")) == 2)
    for number in (1, 2):
        for title, value in settings.items():
            choose(browser, number, title, value)


def choose(browser: Browser, number: int, title: str, value: float | str) -> None:
    script = (
        "const [title, value] = arguments; const labels = document.querySelectorAll('.column')[arguments[2]]"
        ".querySelectorAll('.numbers label'); const input = [...labels].find((one) => one.textContent === title)"
        ".querySelector('input'); input.value = value; input.dispatchEvent(new Event('change'))"
    )
    browser.js(script, title, value, number - 1)


def answers(browser: Browser) -> list[str]:
    return browser.js("return [...document.querySelectorAll('.column .markdown')].map((one) => one.textContent)")


def wait_for_end(browser: Browser) -> None:
    browser.wait(lambda: not browser.one("[aria-busy=true]") and all(answers(browser)))
    browser.wait(lambda: len(browser.all(".column .figures:not([hidden])")) == len(browser.all(".column")))


# -- the API -----------------------------------------------------------------------------------------------------


def test_every_path_is_described_and_opens(browser: Browser, daemon: Daemon):
    open_docs(browser, daemon.http, "chat")
    shown = browser.js("return [...document.querySelectorAll('.operation')].map((one) => one.id)")
    assert sorted(shown) == sorted(operation["operationId"] for _, _, operation in OPERATIONS)
    browser.js("for (const one of document.querySelectorAll('.operation')) one.open = true")
    browser.wait(lambda: len(browser.all(".operation .try")) == len(OPERATIONS))
    for path, method, operation in OPERATIONS:
        words = browser.text(f"#{operation['operationId']}")
        assert path in words
        assert operation["summary"] in words
        assert ("WS" if "101" in operation["responses"] else method.upper()) in words
        assert all(status in words for status in operation["responses"])
        assert all(parameter["name"] in words for parameter in operation.get("parameters", []))


def test_schemas_open_level_by_level(browser: Browser, daemon: Daemon):
    open_docs(browser, daemon.http, "chat")
    # What stands in allOf (temperature), what is required, and limits.
    browser.js("document.querySelector('#chat details').open = true")
    browser.wait(lambda: "messages array of Message required" in browser.text("#chat"))
    assert "at least 0, at most 10, default 1" in browser.text("#chat")
    # Everything that can be opened, however deep.
    seen = -1
    while (count := len(browser.all("#chat .inside"))) != seen:
        seen = count
        browser.js("for (const one of document.querySelectorAll('#chat details')) one.open = true")
        browser.wait(lambda: browser.js("return !document.querySelector('#chat details[open] > summary:only-child')"))
    for name in ("tool_calls", "image_url", "top_logprobs", "finish_reason", "json_schema"):
        assert name in browser.text("#chat")


def test_paths_are_found(browser: Browser, daemon: Daemon):
    open_docs(browser, daemon.http, "chat")
    search = browser.one(".docs input[type=search]")
    search.send_keys("detok")
    assert [one.get_attribute("id") for one in browser.all(".operation:not([hidden])")] == ["detokenize"]
    search.send_keys("!")
    assert browser.text(".docs > [role=status]") == "No path is like this."


def test_a_request_is_tried(browser: Browser, daemon: Daemon):
    form = open_docs(browser, daemon.http, "tokenize")
    area = browser.one(f"{form} textarea")
    assert list(json.loads(area.get_property("value"))) == ["content", "add_special", "with_pieces"]
    send(browser, form)
    browser.wait(lambda: browser.text(f"{form} .status") == "200 OK")
    assert json.loads(browser.wait(lambda: browser.text(f"{form} pre")))["tokens"]
    assert "application/json" in browser.text(f"{form} .headers")
    # What the daemon says of a body that is no JSON.
    area.send_keys("}")
    send(browser, form)
    browser.wait(lambda: browser.text(f"{form} .status") == "400 Bad Request")
    browser.wait(lambda: '"error"' in browser.text(f"{form} pre"))
    assert all("400" in complaint for complaint in browser.complaints())


def test_parameters_go_where_they_belong(browser: Browser, daemon: Daemon):
    form = open_docs(browser, daemon.http, "getModel")
    name = browser.one(f"{form} input").get_property("value")
    assert name
    send(browser, form)
    browser.wait(lambda: browser.text(f"{form} .status") == "200 OK")
    assert json.loads(browser.wait(lambda: browser.text(f"{form} pre")))["id"] == name


def test_events_are_shown_as_they_come(browser: Browser, daemon: Daemon):
    form = open_docs(browser, daemon.http, "chat")
    Select(browser.one(f"{form} select")).select_by_visible_text("streamed")
    body = json.loads(browser.one(f"{form} textarea").get_property("value"))
    endless = json.dumps(body | {"n": 1, "max_completion_tokens": 4000, "ignore_eos": True})
    browser.js("document.querySelector(arguments[0]).value = arguments[1]", f"{form} textarea", endless)
    send(browser, form)
    browser.wait(lambda: browser.text(f"{form} pre").count("data: ") > 3)
    browser.press("Stop")
    browser.wait(lambda: browser.text(f"{form} .status") == "200 OK (stopped)")
    # Who uses the keyboard goes on from there.
    assert browser.driver.switch_to.active_element.text == "Send"
    assert "[DONE]" not in browser.text(f"{form} pre")


def test_a_websocket_is_talked_to(browser: Browser, daemon: Daemon):
    form = open_docs(browser, daemon.http, "converse")
    config = {"type": "config", "prompt": "Once", "parameters": {"max_tokens": 4000}, "options": {"ignore_eos": True}}
    messages = [config, {"type": "control", "action": "stop"}]
    offered = [option.text for option in Select(browser.one(f"{form} select")).options]
    assert offered[:2] == ['type: "config"', 'type: "control"']
    for message, reply in zip(messages, ('"type":"token"', '"type":"completion"'), strict=True):
        browser.js("document.querySelector(arguments[0]).value = arguments[1]", f"{form} textarea", json.dumps(message))
        send(browser, form)
        browser.wait(lambda reply=reply: reply in browser.text(f"{form} pre").replace('": ', '":'))
    browser.press("Close")
    browser.wait(lambda: browser.text(f"{form} .status").startswith("Closed"))


def test_a_form_is_sent_with_its_file(browser: Browser, daemon: Daemon, tmp_path: Path):
    form = open_docs(browser, daemon.http, "transcribe")
    file = tmp_path / "sound.wav"
    file.write_bytes(b"RIFF")
    browser.one(f"{form} input[type=file][required]").send_keys(str(file))
    send(browser, form)
    # The form was read: it is the model that takes no sound.
    browser.wait(lambda: "takes no audio" in browser.text(f"{form} pre"))
    assert all("400" in complaint for complaint in browser.complaints())


def test_a_key_is_asked_for(browser: Browser, own_daemon, tmp_path: Path):
    file = str(tmp_path / "keys.json")
    key = KeyFile(file, missing_ok=True).add("ann")
    daemon = own_daemon("--http", "127.0.0.1:0", "--api-keys", file)
    browser.driver.get(f"http://{daemon.http}/docs#listModels")
    for given in ("umak_wrong", key):
        browser.wait(lambda: browser.one("dialog[open] #key")).send_keys(given)
        browser.press("Use this key")
        if given != key:
            browser.wait(lambda: "does not know this key" in browser.text("dialog"))
            browser.wait(lambda: browser.one("dialog[open]"))
    form = "#props .try"
    browser.wait(lambda: browser.one("#props"))
    browser.js("document.querySelector('#props').open = true")
    browser.wait(lambda: browser.one(form))
    send(browser, form)
    browser.wait(lambda: browser.text(f"{form} .status") == "200 OK")
    browser.press("Change the key")
    browser.wait(lambda: browser.one("dialog[open] #key"))
    assert browser.js("return sessionStorage.length") == 0
    assert all("401" in complaint for complaint in browser.complaints())


# -- comparing ---------------------------------------------------------------------------------------------------


def test_one_question_is_answered_side_by_side(browser: Browser, daemon: Daemon):
    open_compare(browser, daemon.http, Temperature=0, Length=16)
    choose(browser, 2, "Length", 32)
    browser.one(".asking textarea").send_keys("What is the Moon?", Keys.ENTER)
    wait_for_end(browser)
    short, long = answers(browser)
    assert long.startswith(short.strip())
    figures = [one.get_property("textContent") for one in browser.all(".column .figures")]
    for words in ("first token in ", " tokens/s", " prompt tokens, ", " of them cached", "16 written", "cut at its"):
        assert words in figures[0]
    assert [one.text for one in browser.all(".setup summary")] == [
        "Temperature 0 · Length 16",
        "Temperature 0 · Length 32",
    ]


def test_all_are_stopped(browser: Browser, daemon: Daemon):
    open_compare(browser, daemon.http, Temperature=0, Length=4096)
    browser.press("Add a column")
    browser.wait(lambda: len(browser.all(".column")) == 3)
    question = browser.one(".asking textarea")
    question.send_keys("Tell a very long story, in chapters.")
    for stop in (lambda: browser.press("Stop all"), lambda: question.send_keys(Keys.ESCAPE)):
        browser.press("Ask all")
        # All of them at a time: none has ended while the others were writing.
        browser.wait(lambda: len(browser.all(".column[data-phase=writing]")) == 3)
        stop()
        wait_for_end(browser)
        assert all("stopped" in one.text for one in browser.all(".column .figures"))
    assert daemon.metrics()["active_sessions"] == 0


@pytest.mark.parametrize(("typed", "holds"), [("9", "2"), ("-1", "0"), ("0.333", "0.333"), ("", "0.7")])
def test_a_setting_stays_in_its_range(browser: Browser, daemon: Daemon, typed: str, holds: str):
    open_compare(browser, daemon.http)
    choose(browser, 1, "Temperature", typed)
    assert browser.one(".numbers input").get_property("value") == holds
    browser.wait(lambda: browser.text(".setup summary") == f"Temperature {holds}")


def test_an_answer_from_before_is_kept_beside_new_ones(browser: Browser, daemon: Daemon):
    open_compare(browser, daemon.http, Temperature=0, Length=16)
    question = browser.one(".asking textarea")
    question.send_keys("What is the Moon?", Keys.ENTER)
    wait_for_end(browser)
    before = answers(browser)
    assert before[0] == before[1]
    browser.press("Keep this answer")
    choose(browser, 1, "Length", 32)
    question.send_keys(" And the Sun?", Keys.ENTER)
    browser.wait(lambda: answers(browser)[1] != before[1])
    wait_for_end(browser)
    assert answers(browser)[0] == before[0]
    # Its settings are those that it was written by.
    assert browser.text(".setup summary") == "Temperature 0 · Length 16"


def test_a_setting_acts_on_the_running_answer(browser: Browser, daemon: Daemon):
    open_compare(browser, daemon.http, Temperature=0, Length=4096)
    browser.one(".asking textarea").send_keys("Tell a very long story, in chapters.", Keys.ENTER)
    browser.wait(lambda: len(browser.all(".column[data-phase=writing]")) == 2)
    choose(browser, 2, "Temperature", 0.2)
    # By one script: the block is drawn again while it grows.
    browser.wait(lambda: browser.text(".mark") == "temperature 0.2" and all(answers(browser)))
    browser.press("Stop all")
    wait_for_end(browser)
    assert "temperature 0.2" in browser.all(".column")[1].text


def test_models_are_compared(browser: Browser, own_daemon, tmp_path: Path):
    for name in ("twin", "other"):
        shutil.copy(default_model(), tmp_path / f"{name}.gguf")
    daemon = own_daemon("--http", "127.0.0.1:0", "--models-dir", str(tmp_path), "--model", "twin")
    open_compare(browser, daemon.http, Temperature=0, Length=16)
    browser.wait(lambda: len(browser.all(".column option")) == 4)
    browser.all(".setup summary")[1].click()
    Select(browser.all(".column select")[1]).select_by_value("other")
    browser.one(".asking textarea").send_keys("What is the Moon?", Keys.ENTER)
    wait_for_end(browser)
    summaries = [one.text for one in browser.all(".setup summary")]
    assert summaries == [f"{name} · Temperature 0 · Length 16" for name in ("twin", "other")]
    assert [one.get_property("textContent").split(" · ")[-1] for one in browser.all(".column .figures")] == [
        "twin",
        "other",
    ]
    one, other = answers(browser)
    assert one == other


def test_columns_come_and_go(browser: Browser, daemon: Daemon):
    open_compare(browser, daemon.http)
    assert not any(one.is_displayed() for one in browser.all("[aria-label='Remove this column']"))
    for count in (3, 4, 5, 6):
        browser.press("Add a column")
        browser.wait(lambda count=count: len(browser.all(".column")) == count)
    assert browser.one(".asking .row button:last-child:disabled")
    browser.press("Remove this column")
    browser.wait(lambda: len(browser.all(".column")) == 5)
    assert [one.text for one in browser.all(".column h2")] == [f"Column {number}" for number in range(1, 6)]


# -- for everybody -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
def test_they_are_for_everybody(browser: Browser, daemon: Daemon, scheme: str, width: int):
    def check() -> None:
        assert browser.violations() == []
        for tag in ("html", "main"):
            edge = "const [e] = document.getElementsByTagName(arguments[0]); return e.scrollWidth - e.clientWidth"
            assert browser.js(edge, tag) == 0

    with browser.screen(width, 700, scheme):
        form = open_docs(browser, daemon.http, "chat")
        check()
        browser.js("for (const one of document.querySelectorAll('#chat details')) one.open = true")
        open_try = browser.one(f"{form} button.primary")
        open_try.send_keys(Keys.ENTER)
        browser.wait(lambda: browser.text(f"{form} .status") == "200 OK" and browser.text(f"{form} pre"))
        check()
        open_compare(browser, daemon.http, Temperature=0, Length=16)
        browser.one(".asking textarea").send_keys("What is the Moon?")
        browser.one(".setup summary").send_keys(Keys.ENTER)
        browser.press("Ask all")
        wait_for_end(browser)
        check()
