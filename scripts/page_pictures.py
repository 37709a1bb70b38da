"""Makes pictures of the page: its list of conversations, and a batch in the operators' view.

python scripts/page_pictures.py FOLDER
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import openai
from browser import Browser
from daemon import Daemon

from umaserve.access.keys import KeyFile

QUESTIONS = ("Write a haiku about rain.", "Name three islands.", "What is a ferry?")
N_LINES = 400


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "keys"
        key = KeyFile(str(file), missing_ok=True).add("ann", group="operator")
        flags = ("--http", "127.0.0.1:0", "--api-keys", str(file), "--store", str(folder / "store"))
        daemon = Daemon(folder, *flags)
        browser = Browser(folder / "profile")
        try:
            browser.open(daemon.http)
            browser.js("sessionStorage.setItem('umaserve.key', arguments[0])", key)
            conversations(browser, daemon)
            batches(browser, daemon, key)
        finally:
            browser.close()
            daemon.stop()


def conversations(browser: Browser, daemon: Daemon) -> None:
    """The list of conversations, some of which the server keeps."""
    browser.start(daemon.http, max_tokens=48)
    for i, question in enumerate(QUESTIONS):
        if i:
            browser.press("New conversation")
        browser.say(question)
        browser.wait(lambda wanted=question: wanted in browser.text(".conversations"))
        browser.wait_for_end()
        if i != 1:
            n = len(browser.all(".conversations .place"))
            browser.press("Keep on the server")
            browser.wait(lambda before=n: len(browser.all(".conversations .place")) > before)
    take(browser, "page-conversations.png", 1100, 620)


def batches(browser: Browser, daemon: Daemon, key: str) -> None:
    """A batch in the operators' view, with its progress."""
    client = openai.OpenAI(base_url=f"http://{daemon.http}/v1", api_key=key, max_retries=0)
    body = {"model": "default", "messages": [{"role": "user", "content": "Name a city."}], "max_tokens": 24}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = "\n".join(json.dumps({"custom_id": str(i), **line}) for i in range(N_LINES))
    sent = client.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"title": "Cities"}
    )
    while (client.batches.retrieve(batch.id).request_counts or batch.request_counts).completed < N_LINES // 4:
        pass
    browser.open(daemon.http, "box")
    browser.wait(lambda: browser.one("progress"))
    take(browser, "page-batches.png", 1100, 820)
    client.batches.cancel(batch.id)


def take(browser: Browser, name: str, width: int, height: int) -> None:
    browser.driver.set_window_size(width, height)
    browser.driver.save_screenshot(str(Path(sys.argv[1], name)))


if __name__ == "__main__":
    main()
