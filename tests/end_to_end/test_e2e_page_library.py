"""What the page keeps in the browser: conversations to be found and taken along, presets, folded thoughts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from browser import BROWSER, DRIVER, MISSING, Browser
from daemon import Daemon
from selenium.webdriver import Keys

pytestmark = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)

EXPORT = """
URL.createObjectURL = (blob) => ((window.exported = blob.text()), "blob:nothing");
HTMLAnchorElement.prototype.click = function () { window.exportedAs = this.download; };
"""
"""Keeps the file instead of saving it."""

COUNT_READS = """
window.readAll = [];
const getAll = IDBObjectStore.prototype.getAll;
IDBObjectStore.prototype.getAll = function (...asked) {
  window.readAll.push(this.name);
  return getAll.apply(this, asked);
};
"""
EARLIER = """
const named = (asking, event) => new Promise((resolve) => (asking[event] = resolve));
await named(indexedDB.deleteDatabase("umaserve"), "onsuccess");
const opening = indexedDB.open("umaserve", 2);
opening.onupgradeneeded = () => {
  opening.result.createObjectStore("conversations", { keyPath: "id" });
  opening.result.createObjectStore("media", { keyPath: "id" }).createIndex("conversation", "conversation");
};
await named(opening, "onsuccess");
const adding = opening.result.transaction("conversations", "readwrite");
adding.objectStore("conversations").put(values[0]);
await named(adding, "oncomplete");
opening.result.close();
return null;
"""
"""Leaves what version 2 of the page's database kept."""
PICK = """
const { modelPicker } = await import("/page/chat/models.js");
const { createStore } = await import("/page/store.js");
const app = { store: createStore({ models: values[0] }) };
const chat = createStore({ conversation: { model: "" } });
return [...modelPicker(app, chat, {}).querySelectorAll("option")].map((one) => one.textContent);
"""


def talk(text: str, answer: str, **fields: object) -> dict:
    turns = {
        "q": {"id": "q", "parent": "", "role": "user", "text": text},
        "a": {"id": "a", "parent": "q", "role": "assistant", "text": answer, **fields},
    }
    return {"title": text, "system": "", "model": "", "settings": {"temperature": 0.3}, "turns": turns}


def bring(browser: Browser, folder: Path, *conversations: dict) -> None:
    file = folder / "conversations.json"
    whole = {"format": "umaserve-conversations", "version": 1, "conversations": conversations}
    file.write_text(json.dumps(whole))
    browser.one("aside input[type=file]").send_keys(str(file))
    browser.wait(lambda: browser.text(".notice") == f"Conversations imported: {len(conversations)}.")


def titles(browser: Browser) -> set[str]:
    """Of what is listed, or what is said where nothing is."""
    return set(
        browser.js(
            "return [...document.querySelectorAll('.conversations :is(.open, .none)')].map((one) => one.textContent)"
        )
    )


def test_conversations_are_found_by_all_that_was_said(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    bring(browser, tmp_path, talk("Why is the sea salty?", "Rivers."), talk("Who was Lise?", "She found fission."))
    search = browser.one("aside input[type=search]")
    for words, found in (
        ("RIVERS salty", {"Why is the sea salty?"}),
        ("fiss", {"Who was Lise?"}),
        ("salty fission", {"Nothing found"}),
    ):
        search.clear()
        search.send_keys(words)
        browser.wait(lambda found=found: titles(browser) == found)
    search.clear()
    search.send_keys(" ")
    browser.wait(lambda: {"Why is the sea salty?", "Who was Lise?"} <= titles(browser))


def test_what_is_exported_is_imported_as_it_was(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    marks, tokens = [{"at": 2, "values": {"temperature": 1.5}}], [{"end": 4, "logprob": -1, "others": [["Tide", -1]]}]
    bring(browser, tmp_path, talk("What pulls?", "Tides.", thoughts="Hm.", marks=marks, tokens=tokens, end="stop"))
    browser.js(EXPORT)
    browser.press("Export")
    browser.wait(lambda: browser.js("return window.exportedAs?.startsWith('conversations-')"))
    file = json.loads(browser.module("return window.exported"))
    (one,) = (each for each in file["conversations"] if each["title"] == "What pulls?")
    one["title"] = "Once more"
    bring(browser, tmp_path, one)
    browser.driver.refresh()
    browser.wait(lambda: "Once more" in titles(browser))
    browser.js(
        "[...document.querySelectorAll('.conversations .open')].find((b) => b.textContent === 'Once more').click()"
    )
    browser.wait(lambda: browser.text(".answer .markdown").startswith("Ti"))
    assert browser.text(".mark") == "temperature 1.5"
    thoughts = browser.one(".answer details.thoughts")
    assert (thoughts.get_property("open"), thoughts.text) == (False, "Thoughts")
    thoughts.find_element("css selector", "summary").click()
    browser.wait(lambda: thoughts.text == "Thoughts\nHm.")


def test_presets_are_chosen_and_kept_in_this_browser(browser: Browser, daemon: Daemon):
    browser.start(daemon.http)
    browser.press("Settings")
    browser.set("#preset", "Exact", "change")
    browser.wait(lambda: browser.one("#set-temperature").get_property("value") == "0")
    assert browser.one("#system").get_property("value").startswith("Answer briefly")
    browser.set("#set-temperature", "1.25")
    browser.one("[aria-label='Name of a new preset']").send_keys("Mine")
    browser.press("Keep")
    browser.wait(lambda: "“Mine” is kept" in browser.text(".notice"))
    browser.driver.refresh()
    browser.wait(lambda: browser.one("#preset option[value=Mine]"))
    browser.set("#preset", "Mine", "change")
    browser.wait(lambda: browser.one("#set-temperature").get_property("value") == "1.25")
    assert browser.one("#system").get_property("value").startswith("Answer briefly")
    browser.js("localStorage.clear()")


def test_what_is_half_written_and_set_is_there_after_a_reload(browser: Browser, daemon: Daemon):
    def reload() -> None:
        browser.driver.refresh()
        browser.wait(lambda: browser.one(".composer textarea"))

    def found() -> list[str]:
        fields = (".composer textarea", "#set-temperature", "#system")
        return [browser.one(each).get_property("value") for each in fields]

    browser.start(daemon.http, max_tokens=4)
    browser.set("#set-temperature", "1.25")
    browser.set("#system", "Be brief.")
    browser.one(".composer textarea").send_keys("What is")
    reload()
    browser.wait(lambda: found() == ["What is", "1.25", "Be brief."])
    browser.one(".composer textarea").send_keys(" the Moon?")
    browser.press("Send")
    browser.wait_for_end()
    browser.one(".composer textarea").send_keys("And of")
    browser.set("#set-temperature", "0.5")
    browser.press("New conversation (Alt+N)")
    browser.wait(lambda: found() == ["", "0.5", "Be brief."])
    browser.driver.back()
    browser.wait(lambda: found() == ["And of", "0.5", "Be brief."])
    browser.wait(lambda: browser.stored()["settings"]["temperature"] == 0.5)
    reload()
    browser.wait(lambda: browser.all(".turn") and found() == ["And of", "0.5", "Be brief."])


def test_new_conversations_begin_with_somebodys_own_defaults(browser: Browser, daemon: Daemon):
    browser.start(daemon.http)

    def temperature() -> str:
        return browser.one("#set-temperature").get_property("value")

    browser.press("Settings")
    browser.set("#set-temperature", "1.5")
    browser.press("Use for new conversations")
    browser.set("#set-temperature", "0.5")
    browser.press("New conversation (Alt+N)")
    browser.wait(lambda: temperature() == "1.5")
    browser.press("Forget")
    browser.set("#set-temperature", "0.5")
    browser.press("New conversation (Alt+N)")
    browser.wait(lambda: "forgotten" in browser.text(".notice") and temperature() == "0.5")


def test_a_conversation_is_renamed_and_saved_as_markdown(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    bring(browser, tmp_path, talk("What pulls the sea?", "Tides.", model="moon"))
    browser.js("[...document.querySelectorAll('.open')].find((b) => b.textContent === 'What pulls the sea?').click()")
    browser.wait(lambda: browser.text(".answer .markdown") == "Tides.")
    more = "[...document.querySelectorAll('.conversations [aria-label]')].find((b) => b.ariaLabel === arguments[0])"
    browser.js(f"{more}.click()", "More of “What pulls the sea?”")
    browser.wait(lambda: browser.driver.switch_to.active_element.text == "Rename")
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    browser.wait(lambda: browser.driver.switch_to.active_element.accessible_name == "Title")
    browser.driver.switch_to.active_element.send_keys("The sea", Keys.ENTER)
    browser.wait(lambda: "The sea" in titles(browser) and "What pulls the sea?" not in titles(browser))
    assert browser.text(".conversations .when") == "Today"
    browser.js(EXPORT)
    browser.js(f"{more}.nextElementSibling.querySelectorAll('button')[1].click()", "More of “The sea”")
    browser.wait(lambda: browser.js("return window.exportedAs") == "The-sea.md")
    assert (
        browser.module("return window.exported") == "# The sea\n\n## You\n\nWhat pulls the sea?\n\n## moon\n\nTides.\n"
    )
    browser.driver.refresh()
    browser.wait(lambda: "The sea" in titles(browser))


def test_what_is_deleted_can_be_taken_back(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http)
    bring(browser, tmp_path, talk("Gone and back?", "Yes."))
    browser.js("[...document.querySelectorAll('.open')].find((b) => b.textContent === 'Gone and back?').click()")
    browser.wait(lambda: browser.text(".answer .markdown") == "Yes.")
    browser.press("Delete from here on")
    browser.wait(lambda: "Gone and back?" not in titles(browser))
    browser.press("Undo")
    browser.wait(lambda: "Gone and back?" in titles(browser))
    browser.js("[...document.querySelectorAll('.open')].find((b) => b.textContent === 'Gone and back?').click()")
    browser.wait(lambda: browser.text(".answer .markdown") == "Yes.")
    browser.js("document.querySelector('.answer .menu button:last-child').click()")
    browser.wait(lambda: not browser.all(".answer"))
    browser.press("Undo")
    browser.wait(lambda: browser.text(".answer .markdown") == "Yes.")
    browser.wait(lambda: len(browser.stored()["turns"]) == 2)


def test_the_model_gives_titles_where_somebody_wants_that(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4)
    browser.press("Settings")
    label = browser.driver.find_element("xpath", "//label[contains(., 'Titles by the model')]")
    label.click()
    browser.say("What is the Moon made of?")
    browser.wait_for_end()
    browser.wait(lambda: "What is the Moon made of?" not in titles(browser))
    (title,) = [one for one in titles(browser) if one == browser.stored()["title"]]
    assert 0 < len(title) <= 80
    browser.js("localStorage.clear()")


def test_saving_reads_no_other_conversation(browser: Browser, daemon: Daemon, tmp_path: Path):
    browser.start(daemon.http, max_tokens=8)
    bring(browser, tmp_path, talk("One of before", "Yes."))
    browser.js(COUNT_READS)
    browser.press("New conversation (Alt+N)")
    browser.say("What is the Moon?")
    browser.wait_for_end()
    browser.wait(lambda: {"One of before", "What is the Moon?"} <= titles(browser))
    assert browser.js("return window.readAll.includes('conversations')") is False
    assert browser.js("return window.readAll.includes('listing')") is True


def test_conversations_of_an_earlier_version_are_listed(browser: Browser, daemon: Daemon):
    browser.open(daemon.http)
    assert browser.module(EARLIER, talk("Kept by an earlier version", "Yes.") | {"id": "before", "changed": 1}) is None
    browser.driver.refresh()
    browser.wait(lambda: titles(browser) == {"Kept by an earlier version"})


def test_names_of_models_are_short_where_that_is_enough(browser: Browser, daemon: Daemon):
    browser.start(daemon.http)
    names = ["org/Moon-1B-Instruct-Q4_K_M.gguf", "Sun-Q4_0", "Sun-Q8_0", "Q4_0"]
    models = [{"id": name, "status": {"value": "loaded"}} for name in names]
    assert browser.module(PICK, models) == ["Moon-1B-Instruct", "Sun-Q4_0", "Sun-Q8_0", "Q4_0"]


def test_a_model_that_does_not_fit_is_shown_with_what_it_needs(browser: Browser, daemon: Daemon):
    browser.start(daemon.http)
    models = [
        {"id": "small", "status": {"value": "loaded"}, "needed": 1},
        {"id": "large", "status": {"value": "unloaded"}, "needed": 5 << 30, "available": 3 << 29},
    ]
    assert browser.module(PICK, models) == [
        "small",
        "large (doesn't fit: needs 5.0 GiB, at most 1.5 GiB can be had)",
    ]
