"""Conversations of the page that the server keeps: in two browsers, with a daemon that keeps them on disk."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest
from browser import BROWSER, DRIVER, MISSING, Browser
from daemon import Daemon

from umaserve.access.keys import KeyFile

pytestmark = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)

ON_SERVER = ".conversations .place"
MENU = "Keep on the server"
BACK = "Keep in this browser only"
READ_ALL = """
const { openLibrary } = await import("/page/chat/library.js");
return (await openLibrary()).all();
"""
EXPORT = """
URL.createObjectURL = (blob) => ((window.exported = blob.text()), "blob:nothing");
HTMLAnchorElement.prototype.click = () => {};
"""
"""Keeps the exported file instead of saving it."""
FAIL = """
const plain = window.fetch;
window.failing = values[0];
window.fetch = (path, options) => {
  if (!window.failing || !String(path).includes("/v1/conversations")) return plain(path, options);
  if (window.failing === "network") return Promise.reject(new TypeError("no network"));
  if (options.method !== "POST") return plain(path, options);
  const body = JSON.stringify({ error: { message: "items: expected at most 4096 items" } });
  return Promise.resolve(new Response(body, { status: 413 }));
};
return null;
"""
"""From now on the page's requests for conversations fail so, as long as ``window.failing`` says it."""

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A picture."""


ITEMS = """
const { turnsOf, metadataOf, readMetadata } = await import("/page/chat/server_items.js");
const said = (id, parent, role) => ({ type: "message", id, role, content: id, umaserve_page: { parent } });
const items = [said("c", "b", "user"), said("b", "a", "assistant"), said("a", "", "user")];
const circle = [said("lost", "gone", "user"), said("x", "y", "assistant"), said("y", "x", "user")];
const { turns } = turnsOf([...items, ...circle]);
const text = "Wörter 🌍 ".repeat(200);
const metadata = metadataOf({ title: "t", system: text });
const longest = Math.max(...Object.values(metadata).map((each) => new TextEncoder().encode(each).length));
const follows = Object.fromEntries(Object.values(turns).map(({ id, parent }) => [id, parent]));
return { follows, order: Object.keys(turns), longest, text, again: readMetadata(metadata).system };
"""


class Site(NamedTuple):
    """A daemon, its keys, and two browsers: a PC and a phone."""

    daemon: Daemon
    keys: dict[str, str]
    pc: Browser
    phone: Browser

    def server(self, name: str = "ann") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://{self.daemon.http}/v1", api_key=self.keys[name], max_retries=0)

    def listed(self, name: str = "ann") -> list[Any]:
        """What the server has for a key."""
        listed: Any = self.server(name).get("/conversations", cast_to=object)
        data: list[Any] = listed["data"]
        return data

    def items(self, conversation_id: str) -> list[Any]:
        return [*self.server().conversations.items.list(conversation_id, order="asc")]

    def questions(self, conversation_id: str) -> list[str]:
        return [item.content[0].text for item in self.items(conversation_id) if item.role == "user"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    file = folder / "keys"
    made = KeyFile(str(file), missing_ok=True)
    keys = {name: made.add(name) for name in ("ann", "bob")}
    flags = (
        "--http",
        "127.0.0.1:0",
        "--api-keys",
        str(file),
        "--store",
        str(folder / "store"),
        "--store-bytes",
        "8MiB",
    )
    daemon = Daemon(folder, *flags, env={"UMA_THREADS": "1"})
    profiles = [folder / "pc", folder / "phone"]
    browsers = [Browser(profile) for profile in profiles]
    yield Site(daemon, keys, *browsers)
    for browser, profile in zip(browsers, profiles, strict=True):
        browser.close()
        shutil.rmtree(profile, ignore_errors=True)
    assert daemon.stop() == 0
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(autouse=True)
def empty(site: Site) -> Iterator[None]:
    """Nothing is left of one test for the next, and no browser complains but of what was refused."""
    yield
    for name in site.keys:
        for one in site.listed(name):
            site.server(name).conversations.delete(one["id"])
    for browser in (site.pc, site.phone):
        complaints = [one for one in browser.complaints() if "Failed to load resource" not in one]
        if not browser.driver.current_url.startswith("http"):
            continue
        browser.js("sessionStorage.clear(); localStorage.clear(); indexedDB.deleteDatabase('umaserve')")
        browser.driver.get("about:blank")
        assert complaints == []


def enter(browser: Browser, site: Site, name: str = "ann", **settings: object) -> None:
    """Open the page with a key."""
    browser.driver.get(f"http://{site.daemon.http}/#chat")
    browser.js("sessionStorage.setItem('umaserve.key', arguments[0])", site.keys[name])
    browser.start(site.daemon.http, **({"max_tokens": 8} | settings))


def ask(browser: Browser, text: str) -> None:
    browser.say(text)
    browser.wait(lambda: text in turns(browser)[::2])
    browser.wait_for_end()


def turns(browser: Browser) -> list[str]:
    """What is shown of all turns."""
    script = "return [...document.querySelectorAll('.turn > .text, .turn .markdown')].map((one) => one.textContent)"
    texts: list[str] = browser.js(script)
    return texts


def is_being_written(browser: Browser) -> bool:
    """Whether the browser keeps an answer that another load of the page can go on with."""
    written = [turn for each in browser.module(READ_ALL) for turn in each["turns"].values() if "request" in turn]
    return any(turn["request"]["id"] for turn in written)


def titles(browser: Browser) -> list[str]:
    found: list[str] = browser.js(
        "return [...document.querySelectorAll('.conversations .open')].map((one) => one.textContent)"
    )
    return found


def marks(browser: Browser) -> list[str]:
    """What is said of those in the list that have a place on the server."""
    found: list[str] = browser.js(
        "return [...document.querySelectorAll('.conversations .place')].map((one) => one.ariaLabel)"
    )
    return found


def open_(browser: Browser, title: str) -> None:
    browser.wait(lambda: title in titles(browser))
    browser.js("[...document.querySelectorAll('.open')].find((b) => b.textContent === arguments[0]).click()", title)


def come_back(browser: Browser) -> None:
    browser.js("dispatchEvent(new Event('focus'))")


def in_file(file: Any) -> list[Any]:
    """The media of exported conversations."""
    turns = [turn for each in file["conversations"] for turn in each["turns"].values()]
    return [medium for turn in turns for medium in turn.get("media", [])]


def bring(browser: Browser, folder: Path, about: Any, *turns: Any, **media: str) -> None:
    """Import a conversation of these turns."""
    whole = {"model": "", "settings": {}, **about, "turns": {turn["id"]: turn for turn in turns}}
    file = folder / "conversations.json"
    known = {"format": "umaserve-conversations", "version": 1}
    file.write_text(json.dumps({**known, "conversations": [whole], "media": media}))
    browser.one("aside input[type=file]").send_keys(str(file))
    browser.wait(lambda: titles(browser) == [about["title"]])


def moved(site: Site, browser: Browser, question: str) -> str:
    """Ask, and have the conversation kept on the server: its id there."""
    ask(browser, question)
    browser.wait(lambda: browser.js("return document.querySelectorAll('.conversations .open').length"))
    browser.press(MENU)
    browser.wait(lambda: marks(browser) == ["On the server"])
    [one] = site.listed()
    assert one["metadata"]["title"] == question
    return str(one["id"])


def test_a_conversation_goes_on_in_another_browser_with_the_same_key(site: Site):
    enter(site.pc, site)
    one = moved(site, site.pc, "What is the Moon?")
    assert site.pc.module(READ_ALL) == [], "nothing of it is left in the browser"
    assert site.pc.driver.current_url.endswith(f"#/c/{one}")
    enter(site.phone, site)
    open_(site.phone, "What is the Moon?")
    site.phone.wait(lambda: turns(site.phone) == turns(site.pc))
    ask(site.phone, "And the Sun?")
    site.phone.wait(lambda: marks(site.phone) == ["On the server"] and len(site.items(one)) == 4)
    come_back(site.pc)
    site.pc.wait(lambda: len(turns(site.pc)) == 4 and turns(site.pc) == turns(site.phone))
    assert site.questions(one) == ["What is the Moon?", "And the Sun?"]
    site.pc.driver.refresh()
    site.pc.wait(lambda: turns(site.pc) == turns(site.phone))


def test_its_address_opens_it_once_the_key_is_there(site: Site):
    enter(site.pc, site)
    one = moved(site, site.pc, "What is the Moon?")
    site.phone.driver.get(f"http://{site.daemon.http}/#/c/{one}")
    site.phone.wait(lambda: site.phone.one("dialog[open] #key")).send_keys(site.keys["ann"])
    site.phone.wait(lambda: site.phone.driver.current_url.endswith("#chat"))
    site.phone.press("Use this key")
    site.phone.wait(lambda: turns(site.phone) == turns(site.pc))
    assert site.phone.driver.current_url.endswith(f"#/c/{one}")


def test_two_tabs_of_one_browser_go_on_with_it(site: Site):
    enter(site.pc, site)
    one = moved(site, site.pc, "What is the Moon?")
    driver = site.pc.driver
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    second = driver.current_window_handle
    enter(site.pc, site)
    open_(site.pc, "What is the Moon?")
    site.pc.wait(lambda: len(turns(site.pc)) == 2)
    for number, tab in enumerate((first, second, first)):
        driver.switch_to.window(tab)
        site.pc.wait(lambda number=number: len(turns(site.pc)) == 2 + 2 * number)
        ask(site.pc, f"And number {number}?")
        site.pc.wait(lambda number=number: len(site.items(one)) == 4 + 2 * number and site.pc.module(READ_ALL) == [])
    assert site.questions(one) == ["What is the Moon?", "And number 0?", "And number 1?", "And number 2?"]
    driver.switch_to.window(second)
    site.pc.wait(lambda: len(turns(site.pc)) == 8)
    driver.close()
    driver.switch_to.window(first)


def test_another_key_sees_nothing_of_it(site: Site):
    enter(site.pc, site)
    one = moved(site, site.pc, "What is the Moon?")
    enter(site.phone, site, "bob")
    site.phone.press("Settings")
    site.phone.wait(
        lambda: site.phone.js("return document.body.innerText").count("Keep new conversations on the server")
    )
    assert titles(site.phone) == []
    site.phone.js("location.hash = arguments[0]", f"#/c/{one}")
    site.phone.wait(lambda: "doesn't have this conversation for this key" in site.phone.text(".notice"))
    assert site.listed("bob") == []


def test_what_two_browsers_say_at_once_are_branches(site: Site):
    enter(site.pc, site)
    one = moved(site, site.pc, "What is the Moon?")
    enter(site.phone, site)
    open_(site.phone, "What is the Moon?")
    site.phone.wait(lambda: len(turns(site.phone)) == 2)
    ask(site.pc, "And the Sun?")
    site.pc.wait(lambda: len(site.items(one)) == 4)
    ask(site.phone, "And Mars?")
    site.phone.wait(lambda: len(site.items(one)) == 6 and marks(site.phone) == ["On the server"])
    for browser in (site.pc, site.phone):
        come_back(browser)
        browser.wait(lambda browser=browser: browser.text(".branch") in ("1 / 2", "2 / 2"))


def test_titles_settings_and_deletions_are_everywhere(site: Site):
    enter(site.pc, site, temperature=0.25)
    one = moved(site, site.pc, "What is the Moon?")
    site.pc.set("#system", "Be brief. " * 80)
    site.pc.wait(lambda: site.server().conversations.retrieve(one).metadata.get("system.2"))
    enter(site.phone, site)
    open_(site.phone, "What is the Moon?")
    site.phone.wait(lambda: site.phone.one("#system").get_property("value") == "Be brief. " * 80)
    assert site.phone.one("#set-temperature").get_property("value") == "0.25"
    site.phone.press("Delete from here on")
    site.phone.wait(lambda: site.listed() == [])
    come_back(site.pc)
    site.pc.wait(lambda: titles(site.pc) == [] and "doesn't have" in site.pc.text(".notice"))
    site.phone.press("Undo")
    site.phone.wait(lambda: [each["metadata"].get("title") for each in site.listed()] == ["What is the Moon?"])
    # What is shown on the PC is not lost: what is added to it stays there.
    ask(site.pc, "And the Sun?")
    site.pc.wait(lambda: "kept in this browser now" in site.pc.text(".notice"))
    [kept] = site.pc.module(READ_ALL)
    assert len(kept["turns"]) == 4


def test_a_conversation_comes_back_into_the_browser(site: Site):
    enter(site.pc, site)
    moved(site, site.pc, "What is the Moon?")
    site.pc.press(BACK)
    site.pc.wait(lambda: site.listed() == [] and marks(site.pc) == [])
    [kept] = site.pc.module(READ_ALL)
    assert sorted(turn["role"] for turn in kept["turns"].values()) == ["assistant", "user"]
    assert site.pc.driver.current_url.endswith(f"#/c/{kept['id']}")
    ask(site.pc, "And the Sun?")
    assert site.listed() == []


def test_new_conversations_begin_on_the_server_where_somebody_wants_that(site: Site):
    enter(site.pc, site)
    site.pc.press("Settings")
    label = "//label[contains(., 'Keep new conversations on the server')]"
    site.pc.wait(lambda: site.pc.driver.find_element("xpath", label).is_displayed())
    site.pc.driver.find_element("xpath", label).click()
    ask(site.pc, "What is the Moon?")
    site.pc.wait(lambda: marks(site.pc) == ["On the server"])
    ask(site.pc, "And the Sun?")
    [one] = site.listed()
    site.pc.wait(lambda: len(site.items(one["id"])) == 4 and site.pc.module(READ_ALL) == [])
    # All of it is found, also what was read by no one here.
    enter(site.phone, site)
    site.phone.wait(lambda: titles(site.phone) == ["What is the Moon?"])
    search = site.phone.one("aside input[type=search]")
    for words, found in (("sun", ["What is the Moon?"]), ("venus", [])):
        search.clear()
        search.send_keys(words)
        site.phone.wait(lambda found=found: titles(site.phone) == found)


@pytest.mark.parametrize(("how", "words"), [("full", "has no room"), ("network", "can't be reached")])
def test_what_cannot_be_saved_stays_in_the_browser(site: Site, how: str, words: str):
    enter(site.pc, site)
    ask(site.pc, "What is the Moon?")
    site.pc.module(FAIL, how)
    site.pc.press(MENU)
    site.pc.wait(lambda: f"stays in this browser: it {words}" in site.pc.text(".notice"))
    [kept] = site.pc.module(READ_ALL)
    assert len(kept["turns"]) == 2
    site.pc.js("window.failing = ''")
    site.pc.press(MENU)
    site.pc.wait(lambda: marks(site.pc) == ["On the server"] and site.pc.module(READ_ALL) == [])
    [one] = [each for each in site.listed() if each["metadata"]]
    site.pc.js("window.failing = arguments[0]", how)
    ask(site.pc, "And the Sun?")
    site.pc.wait(
        lambda: f"kept in this browser until it can be saved on the server: it {words}" in site.pc.text(".notice")
    )
    assert marks(site.pc) == ["Not all of it is on the server yet"]
    site.pc.driver.refresh()
    site.pc.wait(lambda: marks(site.pc) == ["On the server"] and len(turns(site.pc)) == 4)
    assert site.questions(one["id"]) == ["What is the Moon?", "And the Sun?"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"answer": "A large one. " * 50_000}, "it has no room for that"),
        ({"system": "ä" * 4000}, "its system prompt and settings are too long for the server"),
    ],
)
def test_what_the_server_does_not_take_leaves_nothing_there(site: Site, tmp_path: Path, fields: Any, words: str):
    enter(site.pc, site)
    question = {"id": "q", "parent": "", "role": "user", "text": "Too large?"}
    answer = {"id": "a", "parent": "q", "role": "assistant", "text": fields.get("answer", "Yes."), "end": "stop"}
    bring(site.pc, tmp_path, {"title": "Too large?", "system": fields.get("system", "")}, question, answer)
    site.pc.press(MENU)
    site.pc.wait(lambda: words in site.pc.text(".notice"))
    site.pc.wait(lambda: site.listed() == [])
    assert marks(site.pc) == []
    [kept] = site.pc.module(READ_ALL)
    assert kept["turns"][next(iter(kept["chosen"].values()))]["text"]


def test_items_are_read_in_any_order_and_long_texts_go_over_several_pairs(site: Site):
    enter(site.pc, site)
    found = site.pc.module(ITEMS)
    assert found["follows"] == {"a": "", "b": "a", "c": "b", "lost": "", "x": "y", "y": ""}
    assert found["order"] == ["a", "b", "c", "lost", "y", "x"]
    assert found["longest"] <= 512
    assert found["again"] == found["text"]


def test_an_answer_goes_on_after_a_reload_and_is_then_on_the_server(site: Site):
    enter(site.pc, site, max_tokens=300)
    ask(site.pc, "Say one word.")
    site.pc.press(MENU)
    site.pc.wait(lambda: marks(site.pc) == ["On the server"])
    [one] = site.listed()
    site.pc.say("Tell a long story.")
    site.pc.wait(lambda: is_being_written(site.pc) and turns(site.pc)[-2] == "Tell a long story.")
    site.pc.wait(lambda: len(turns(site.pc)[-1]) > 20)
    site.pc.driver.refresh()
    site.pc.wait_for_end()
    site.pc.wait(lambda: len(site.items(one["id"])) == 4 and site.pc.module(READ_ALL) == [])
    assert site.questions(one["id"]) == ["Say one word.", "Tell a long story."]


def test_what_programs_have_said_is_shown_and_gone_on_with(site: Site):
    items: Any = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Good day."}]
    made = site.server().conversations.create(items=items, metadata={"title": "Of a program"})
    site.server().conversations.create(metadata={"topic": "not for people"})
    enter(site.pc, site)
    site.pc.wait(lambda: titles(site.pc) == ["Of a program"])
    open_(site.pc, "Of a program")
    site.pc.wait(lambda: turns(site.pc) == ["Hello!", "Good day."])
    ask(site.pc, "What is the Moon?")
    site.pc.wait(lambda: len(site.items(made.id)) == 4)
    reply = site.server().responses.create(model="any", input="And Mars?", conversation=made.id, max_output_tokens=8)
    come_back(site.pc)
    site.pc.wait(lambda: turns(site.pc)[-2:] == ["And Mars?", reply.output_text])


def test_files_and_calls_are_there_in_another_browser(site: Site, tmp_path: Path):
    enter(site.pc, site)
    call = {"id": "c", "name": "look", "arguments": "{}", "result": "Clouds."}
    media = [{"id": "t", "kind": "text", "name": "notes.txt", "type": "text/plain"}]
    media += [{"id": "p", "kind": "image", "name": "dot.png", "type": "image/png"}]
    asked = {"id": "q", "parent": "", "role": "user", "text": "What is there?", "media": media}
    answers = [
        {"id": "a", "parent": "q", "role": "assistant", "text": "", "calls": [call], "end": "tool_calls"},
        {"id": "b", "parent": "a", "role": "assistant", "text": "Clouds are there.", "thoughts": "Hm.", "end": "stop"},
        {"id": "x", "parent": "q", "role": "assistant", "text": "Nothing.", "end": "stop"},
    ]
    shown = {"": "q", "q": "a", "a": "b"}
    about = {"title": "Clouds", "system": "", "chosen": shown}
    bring(site.pc, tmp_path, about, asked, *answers, t="VHdvIGxpbmVzCm9mIHRleHQ=", p=DOT)
    site.pc.press(MENU)
    site.pc.wait(lambda: marks(site.pc) == ["On the server"] and site.pc.module(READ_ALL) == [])
    [one] = site.listed()
    kinds = [item.type for item in site.items(one["id"])]
    assert kinds == ["message", "message", "function_call", "function_call_output", "message", "message"]
    enter(site.phone, site)
    open_(site.phone, "Clouds")
    site.phone.wait(lambda: turns(site.phone)[-1:] == ["Clouds are there."])
    site.phone.wait(lambda: site.phone.js("return document.querySelector('.turn img')?.naturalWidth") == 1)
    assert "Clouds." in site.phone.js("return document.body.textContent")
    site.phone.js("document.querySelector('.turn details.file').open = true")
    site.phone.wait(lambda: site.phone.text(".turn details.file pre") == "Two lines\nof text")
    site.phone.js(EXPORT)
    site.phone.press("Export")
    site.phone.wait(lambda: site.phone.js("return window.exported !== undefined"))
    file = json.loads(site.phone.module("return window.exported"))
    assert (len(file["conversations"]), sorted(file["media"])) == (1, sorted(m["id"] for m in in_file(file)))
    assert "server" not in file["conversations"][0]
    site.phone.press(BACK)
    site.phone.wait(lambda: marks(site.phone) == [])
    [kept] = site.phone.module(READ_ALL)
    texts = sorted(turn["text"] for turn in kept["turns"].values())
    assert texts == ["", "Clouds are there.", "Nothing.", "What is there?"]
    site.phone.driver.refresh()
    site.phone.wait(lambda: site.phone.js("return document.querySelector('.turn img')?.naturalWidth") == 1)


def test_without_a_store_or_a_key_there_is_no_such_place(site: Site, daemon: Daemon):
    site.pc.start(daemon.http, max_tokens=4)
    site.pc.press("Settings")
    ask(site.pc, "What is the Moon?")
    site.pc.wait(lambda: titles(site.pc) == ["What is the Moon?"])
    assert "Keep on the server" not in site.pc.js("return document.body.textContent")
    assert "Keep new conversations on the server" not in site.pc.js("return document.body.innerText")
