"""``umaserve models list``, ``load`` and ``unload``: what they print of a daemon's answers, and where there is none."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from umaserve.cli import main
from umaserve.commands.served_models import table

NOW = 1_700_000_000.0


def model(name: str, state: str = "unloaded", **fields: Any) -> dict[str, Any]:
    """As ``GET /models`` tells of it."""
    told = {"id": name, "aliases": [name], "size": 100 << 20, "needed": 356 << 20, "status": {"value": state}}
    return told | fields


def test_the_table_has_the_states_sizes_and_names() -> None:
    models = [
        model("chat", "loaded", last_used=int(NOW) - 3, aliases=["chat", "gpt", "SmolLM2"]),
        model("large", status={"value": "loading", "progress": 0.426}, last_used=int(NOW) - 7300),
        model("broken", status={"value": "unloaded", "failed": True}, size=0, last_used=int(NOW) - 60),
        model("odd\x1b[2J", last_used=int(NOW) - 200_000),
        model("new", last_used=int(NOW) + 5),
        model("never"),
    ]
    assert table(models, NOW).splitlines() == [
        "  NAME            STATE        SIZE     MEMORY   LAST USED  OTHER NAMES",
        "* chat            loaded       100 MiB  356 MiB  3 s ago    gpt, SmolLM2",
        "  large           loading 43%  100 MiB  356 MiB  2 h ago",
        "  broken          failed       missing  356 MiB  1 min ago",
        '  "odd\\u001b[2J"  unloaded     100 MiB  356 MiB  2 d ago',
        "  new             unloaded     100 MiB  356 MiB  0 s ago",
        "  never           unloaded     100 MiB  356 MiB  never",
    ]


def test_the_table_has_downloads_with_their_progress() -> None:
    def download(**files: tuple[int, int]) -> Any:
        progress = {
            f"https://hub.example/{name}": {"done": done, "total": all_} for name, (done, all_) in files.items()
        }
        total = sum(all_ for _done, all_ in files.values())
        return model("org/a:Q8_0", status={"value": "downloading", "progress": progress}, size=total, needed=0)

    known = download(a=(3 << 20, 4 << 20), b=(0, 4 << 20))
    rows = table([model("chat"), known, download()], NOW).splitlines()[2:]
    assert [row.split() for row in rows] == [
        ["org/a:Q8_0", "downloading", "38%", "8", "MiB", "0", "MiB", "never"],
        ["org/a:Q8_0", "downloading", "0", "MiB", "never"],
    ]


class _Scripted(http.server.BaseHTTPRequestHandler):
    answers: dict[str, list[tuple[int, bytes]]]
    """By method and path, in turn; the last one stays."""
    keys: list[str | None]

    def do_GET(self) -> None:
        self.keys.append(self.headers["Authorization"])
        answers = self.answers[f"{self.command} {self.path}"]
        status, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def scripted() -> Iterator[tuple[type[_Scripted], str]]:
    """A stand-in for a daemon, and its URL."""
    handler = type("Handler", (_Scripted,), {"answers": {}, "keys": []})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


MOVED = (200, body({"success": True}))


def test_loading_waits_until_the_model_is_loaded(scripted: tuple[type[_Scripted], str]) -> None:
    handler, url = scripted
    looks = [(200, body(model("a/b", status={"value": "loading", "progress": 0.5})))]
    looks += [(200, body(model("a/b", "loaded")))]
    handler.answers = {"POST /models/load": [MOVED], "GET /v1/models/a%2Fb": looks}
    assert main(["models", "load", "a/b", "--url", url, "--key", "secret"]) == 0
    assert handler.keys == ["Bearer secret"] * 3


def test_a_model_that_could_not_be_loaded_fails_the_command(
    scripted: tuple[type[_Scripted], str], capsys: pytest.CaptureFixture[str]
) -> None:
    handler, url = scripted
    failed = model("a", status={"value": "unloaded", "failed": True})
    handler.answers = {"POST /models/load": [MOVED], "GET /v1/models/a": [(200, body(failed))]}
    assert main(["models", "load", "a", "--url", url]) == 1
    assert capsys.readouterr().err == "umaserve: a could not be loaded: see the server's log\n"


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"data":[{"id":"a"}]}', b'{"data":5}', b"\xff"])
def test_another_server_is_told_in_a_line(
    scripted: tuple[type[_Scripted], str], answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    handler, url = scripted
    handler.answers = {"GET /models": [(200, answer)]}
    assert main(["models", "list", "--url", url]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"umaserve: {url}: the server there is not umaserve")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (400, {"message": "model: a is pinned: it stays loaded"}, "model: a is pinned: it stays loaded"),
        (401, {"message": "key: expected one"}, "key: expected one: give one with --key"),
        (404, {"message": "no"}, "no model is named a, did you mean aa?: see umaserve models list"),
        (500, "oops", "oops"),
        (500, 5, "it was refused"),
    ],
)
def test_a_refusal_is_told_in_a_line(
    scripted: tuple[type[_Scripted], str], status: int, error: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handler, url = scripted
    listed = body({"data": [model("long"), model("aa")]})
    handler.answers = {"POST /models/unload": [(status, body({"error": error}))], "GET /models": [(200, listed)]}
    assert main(["models", "unload", "a", "--url", url]) == 1
    assert capsys.readouterr().err == f"umaserve: {said}\n"


@pytest.mark.parametrize("url", ["unix:/nowhere/uma.sock", "http://127.0.0.1:1"])
def test_where_no_daemon_is_the_advice_is_how_to_find_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list", "--url", url]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"umaserve: {url}: ")
    assert said.endswith(": start a daemon with --http, or name its address with --url\n")


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://a", "http://", "http://a:b", ""])
def test_what_is_no_url_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list", "--url", url]) == 1
    expected = "expected a URL such as http://127.0.0.1:8080, or unix:PATH"
    assert capsys.readouterr().err == f"umaserve: --url: {expected}, got {url}\n"
