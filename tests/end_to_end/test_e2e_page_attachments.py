"""Pictures, sounds and videos in the page, in a real browser, with a tiny projector whose weights are random."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import media_files
import pytest
import standin_projectors as projectors
from browser import BROWSER, DRIVER, MISSING, Browser
from daemon import Daemon

pytestmark = pytest.mark.skipif(DRIVER is None or BROWSER is None, reason=MISSING)

DROP = """
const [name, type, data, event] = arguments;
const files = new DataTransfer();
files.items.add(new File([Uint8Array.from(atob(data), (char) => char.charCodeAt(0))], name, { type }));
const init = { bubbles: true, cancelable: true, dataTransfer: files, clipboardData: files };
if (event === "paste") document.querySelector(".composer textarea").dispatchEvent(new ClipboardEvent(event, init));
else document.querySelector("main").dispatchEvent(new DragEvent(event, init));
"""
SENT = "return window.wire.filter((one) => one.type === 'config').at(-1).prompt"
EXPORT = """
const { openLibrary } = await import("/page/chat/library.js");
const { exported } = await import("/page/chat/exported_file.js");
return exported(await openLibrary());
"""
KEPT = """
const opening = indexedDB.open("umaserve");
const database = await new Promise((resolve) => (opening.onsuccess = () => resolve(opening.result)));
const asking = database.transaction("media").objectStore("media").getAll();
const kept = await new Promise((resolve) => (asking.onsuccess = () => resolve(asking.result)));
database.close();
return kept.map(({ blob }) => blob.size);
"""


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that sees and hears."""
    folder = tmp_path_factory.mktemp("seeing")
    projector = str(projectors.both(folder / "mmproj.gguf", longest_edge=64))
    flags = ("--http", "127.0.0.1:0", "--mmproj", projector, "--max-chat-bytes", "4MiB")
    daemon = Daemon(folder, *flags, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def drop(browser: Browser, name: str, kind: str, data: bytes, event: str = "drop") -> None:
    browser.js(DROP, name, kind, base64.b64encode(data).decode(), event)


def attach(browser: Browser, name: str, kind: str, data: bytes, event: str = "drop") -> None:
    count = len(browser.all(".previews li"))
    drop(browser, name, kind, data, event)
    browser.wait(lambda: len(browser.all(".previews li")) == count + 1)


def ask(browser: Browser, text: str = "What is this?") -> list:
    """Send it, and wait for the answer; returns the content of the last turn that was sent."""
    browser.say(text)
    browser.wait_for_end()
    return browser.js(SENT)[-1]["content"]


@pytest.mark.parametrize(("size", "scheme"), [((1280, 800), "light"), ((320, 640), "dark")], ids=["desk", "phone"])
def test_what_a_model_does_not_take_is_greyed_with_the_reason(
    browser: Browser, daemon: Daemon, size: tuple[int, int], scheme: str
):
    with browser.screen(*size, scheme):
        browser.start(daemon.http)
        browser.press("Attach")
        browser.wait(lambda: browser.all(".sources [aria-disabled=true]"))
        assert len(browser.all(".sources [aria-disabled=true]")) == 5
        reason = browser.text("#attach-note")
        assert reason.endswith("takes no pictures, sounds or videos: its server runs it without a projector for them.")
        # Who walks there by the keyboard hears it, too.
        assert browser.driver.switch_to.active_element.text == "Text, code, PDF"
        picture = browser.one(".sources [aria-disabled=true]")
        assert (picture.text, picture.get_attribute("aria-describedby")) == ("Picture", "attach-note")
        drop(browser, "moon.png", "image/png", media_files.image())
        browser.wait(lambda: "takes no pictures" in browser.text(".notice"))
        assert not browser.all(".previews li")
        browser.shoot(f"attach-refused-{size[0]}")
        assert browser.violations() == []
        assert browser.js("return document.documentElement.scrollWidth") <= size[0]


def test_a_picture_is_answered_shown_and_taken_along(browser: Browser, seeing: Daemon, tmp_path: Path):
    picture = media_files.image()
    browser.start(seeing.http, max_tokens=8)
    attach(browser, "gone.png", "image/png", picture)
    browser.press("Remove gone.png")
    browser.wait(lambda: not browser.all(".previews li"))
    assert browser.js("return document.activeElement.ariaLabel") == "Message"
    attach(browser, "moon.png", "image/png", picture, "paste")
    browser.shoot("attach-preview")
    assert browser.violations() == []
    image, text = ask(browser)
    assert (image["type"], base64.b64decode(image["data"]), text["text"]) == ("image", picture, "What is this?")
    assert not browser.all(".previews li")
    # The next turn has it again, and it is shown where it was said.
    browser.say("And this?")
    browser.wait(lambda: len(browser.all(".answer")) == 2)
    browser.wait_for_end()
    assert browser.js(SENT)[0]["content"] == [image, text]
    loaded = "return document.querySelector('.turn .media img')?.naturalWidth"
    browser.wait(lambda: browser.js(loaded))
    browser.shoot("attach-shown")
    assert browser.violations() == []
    # It goes with the exported file, and is gone with the conversation.
    exported = browser.module(EXPORT)
    assert list(json.loads(exported)["media"].values()) == [image["data"]]
    assert browser.module(KEPT) == [len(picture)]
    browser.press("Delete")
    browser.wait(lambda: browser.module(KEPT) == [])
    # What the browser has lost is left out of the file, and what the file has not is left out of the turn.
    file = tmp_path / "conversations.json"
    lost = json.loads(exported) | {"media": {}}
    file.write_text(json.dumps(lost))
    browser.one("aside input[type=file]").send_keys(str(file))
    browser.click(".conversations .open")
    browser.wait(lambda: len(browser.all(".answer")) == 2)
    assert browser.module(KEPT) == browser.all(".turn .media img") == []
    browser.press("Delete")
    browser.wait(lambda: not browser.all(".conversations .open"))
    file.write_text(exported)
    browser.one("aside input[type=file]").send_keys(str(file))
    browser.click(".conversations .open")
    browser.wait(lambda: browser.js(loaded))
    browser.say("And now?")
    browser.wait(lambda: len(browser.all(".answer")) == 3)
    browser.wait_for_end()
    assert browser.js(SENT)[0]["content"] == [image, text]


def pdf_of(text: str) -> bytes:
    """A PDF of one page with this text."""
    drawn = f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        " /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream",
    ]
    made = b"%PDF-1.4\n"
    places = []
    for number, each in enumerate(objects, 1):
        places.append(len(made))
        made += f"{number} 0 obj\n{each}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return made + f"{end}startxref\n{len(made)}\n%%EOF\n".encode()


def test_texts_and_pdfs_go_with_the_question_of_any_model(browser: Browser, daemon: Daemon):
    browser.start(daemon.http, max_tokens=4)
    code = "print('`' * 3)\n```\n"
    attach(browser, "three.ts", "video/mp2t", code.encode())
    browser.wait(lambda: " tokens" in browser.text(".previews .hint"))
    attach(browser, "tides.pdf", "application/pdf", pdf_of("Tides come twice a day"))
    assert browser.violations() == []
    content = ask(browser, "What are these?")
    assert content == (
        f"three.ts:\n````\n{code.rstrip()}\n````\n\ntides.pdf:\n```\nTides come twice a day\n```\n\nWhat are these?"
    )
    assert [one.text for one in browser.all(".turn.user .file summary")] == ["three.ts", "tides.pdf"]
    # It is there again after a reload, with the next turn too.
    browser.driver.refresh()
    browser.wait(lambda: len(browser.all(".turn.user .file")) == 2)
    browser.say("And now?")
    browser.wait(lambda: len(browser.all(".answer")) == 2)
    browser.wait_for_end()
    assert browser.js(SENT)[0]["content"] == content
    assert browser.complaints() == []


@pytest.mark.parametrize(
    ("name", "kind", "data", "words"),
    [
        ("a.zip", "application/zip", b"PK\x03\x04\xff\x00", "a.zip is not a text, PDF, picture, sound or video."),
        ("a.bin", "", b"a\x00b", "a.bin is not a text, PDF, picture, sound or video."),
        ("a.txt", "text/plain", b"x" * (2 << 20), "a.txt has 2.0 MiB: at most 1.0 MiB of text go with a question."),
        ("a.pdf", "application/pdf", b"%PDF-1.4 nothing", "a.pdf is no PDF that can be read."),
        ("b.pdf", "application/pdf", pdf_of(""), "b.pdf has no text, only pictures of it."),
    ],
)
def test_what_has_no_text_is_refused(browser: Browser, daemon: Daemon, name: str, kind: str, data: bytes, words: str):
    browser.start(daemon.http)
    drop(browser, name, kind, data)
    browser.wait(lambda: browser.text(".notice") == words)
    assert not browser.all(".previews li")


def test_an_answer_about_a_picture_is_paused_steered_and_goes_on(browser: Browser, seeing: Daemon):
    browser.start(seeing.http, max_tokens=1500, ignore_eos=True)
    attach(browser, "moon.png", "image/png", media_files.image())
    browser.say("What is this?")
    browser.wait(lambda: browser.text(".answer .markdown"))
    browser.set("#set-temperature", "1.5")
    browser.wait(lambda: "temperature 1.5" in browser.text(".answer"))
    browser.press("Pause")
    browser.wait(lambda: browser.one(".answer[data-phase=paused]"))
    held, received = browser.text(".answer .markdown"), len(browser.js("return window.wire"))
    # Whatever came after the acknowledgement would have come before another connection's answer.
    seeing.ask(max_tokens=4)
    assert (browser.text(".answer .markdown"), len(browser.js("return window.wire"))) == (held, received)
    browser.set("#set-temperature", "0.2")
    browser.wait(lambda: browser.js("return window.wire.at(-1).operation") == "modify")
    assert browser.one(".answer[data-phase=paused]")
    browser.press("Go on")
    browser.wait(lambda: "temperature 0.2" in browser.text(".answer .markdown"))
    browser.press("Stop")
    browser.wait_for_end()
    (answer,) = browser.answers()
    assert [mark["values"] for mark in answer["marks"]] == [{"temperature": 1.5}, {"temperature": 0.2}]
    assert [mark["at"] for mark in answer["marks"]] == browser.modified_at()
    assert answer["marks"][1]["at"] < len(answer["text"])


def test_another_token_of_an_answer_about_a_picture_begins_a_branch(browser: Browser, seeing: Daemon):
    browser.start(seeing.http, max_tokens=12, ignore_eos=True)
    browser.js("document.querySelector('#probabilities').click()")
    attach(browser, "moon.png", "image/png", media_files.image())
    sent = ask(browser)
    (answer,) = browser.answers()
    index = next(i for i, token in enumerate(answer["tokens"]) if i > 2 and len(token["others"]) > 3)
    browser.one(f"[data-token='{index}']").click()
    browser.click(".alternatives:popover-open button:enabled")
    browser.wait(lambda: browser.text(".branch") == "2 / 2")
    browser.wait_for_end()
    before, after = browser.answers()
    # The question with its picture, and the beginning of the answer.
    question, beginning = browser.js(SENT)
    kept = before["tokens"][index - 1]["end"]
    assert (question["content"], beginning["role"]) == (sent, "assistant")
    assert beginning["content"] == after["text"][: after["tokens"][index]["end"]]
    assert beginning["content"][:kept] == before["text"][:kept]
    assert beginning["content"] != before["text"][: before["tokens"][index]["end"]]
    assert after["stats"]["cached"] > kept > 0


def test_a_video_reaches_the_model(browser: Browser, seeing: Daemon):
    film = media_files.film([media_files.RED, media_files.BLUE] * 5)
    browser.start(seeing.http, max_tokens=4)
    attach(browser, "film.mp4", "video/mp4", film)
    assert browser.js("return document.querySelector('.previews video').ariaLabel") == "film.mp4"
    video, text = ask(browser)
    assert (video["type"], base64.b64decode(video["data"]), text["text"]) == ("video", film, "What is this?")
    (of_film,) = browser.answers()
    loaded = "return document.querySelector('.turn .media video')?.videoWidth"
    browser.wait(lambda: browser.js(loaded) == 64)
    # What is no film, whatever its name says, is refused with the reason, and what to do.
    browser.press("New conversation (Alt+N)")
    attach(browser, "broken.mp4", "video/mp4", bytes(99))
    browser.say("What is this?")
    browser.wait(lambda: browser.one(".answer[data-phase=failed]"))
    note = browser.text(".answer .note")
    assert note.startswith("The server can't read what is attached: expected a video, got 99 bytes that are damaged")
    assert note.endswith(". Delete that question, and ask without it.")
    browser.js("window.confirm = () => true; document.querySelector('.user [aria-label^=Delete]').click()")
    browser.wait(lambda: not browser.all(".turn"))
    ask(browser)
    (of_text,) = browser.answers()
    assert of_film["stats"]["prompt"] > of_text["stats"]["prompt"] + 10


def test_a_recording_and_a_picture_of_the_camera_are_sent(browser: Browser, seeing: Daemon):
    browser.start(seeing.http, max_tokens=4)
    browser.press("Attach")
    browser.press("Record")
    browser.wait(lambda: browser.js("return document.querySelector('.capture meter')?.value > 0.1"))
    browser.shoot("attach-record")
    assert browser.violations() == []
    browser.press("Attach the recording")
    browser.press("Camera")
    browser.wait(lambda: browser.js("return document.querySelector('.capture video')?.videoWidth > 0"))
    browser.shoot("attach-camera")
    browser.press("Take the picture")
    browser.wait(lambda: len(browser.all(".previews li")) == 2)
    browser.shoot("attach-two")
    assert [one["type"] for one in ask(browser)] == ["audio", "image", "text"]
    assert [one.tag_name for one in browser.all(".turn .media > *")] == ["audio", "img"]
    assert browser.violations() == []


def test_what_is_too_large_or_of_no_kind_is_refused(browser: Browser, seeing: Daemon):
    browser.start(seeing.http)
    for name, kind, size, problem in (
        ("film.mp4", "video/mp4", 3 << 20, "film.mp4 has 3.0 MiB: this server takes 2.6 MiB with a conversation."),
        ("notes.txt", "text/plain", 9, "notes.txt is not a text, PDF, picture, sound or video."),
        ("broken.heic", "image/heic", 9, "The browser can't read broken.heic."),
        ("broken.png", "image/png", 9, "The browser can't read broken.png."),
        ("silence.wav", "audio/wav", 0, "silence.wav is empty."),
    ):
        drop(browser, name, kind, bytes(size))
        browser.wait(lambda problem=problem: browser.text(".notice") == problem)
    assert not browser.all(".previews li")
