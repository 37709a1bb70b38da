"""Who gets the page at the root, and how its files are served."""

from __future__ import annotations

import configparser
import gzip
import json
import posixpath
import re
from pathlib import Path

import pytest
from routes import routes

import umaserve
from umaserve.daemon.http.web_page import FILES, wanted
from umaserve.wire.http_head import Refusal, Request

TYPES = ("text/html", "text/css", "text/javascript", "image/svg+xml", "font/woff2")
BROWSERS = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"


def ask(path: str, headers: dict[str, str] | None = None, **settings):
    """Status, headers and body of what the daemon with these settings has at the path."""
    table = routes(**settings)
    route = table[path] if path in table else table["/page/{file}"]
    status, found, body = route.endpoint.make(Request("GET", path, {}, tuple((headers or {}).items()), b""))
    return status, dict(found), body


@pytest.mark.parametrize(
    ("accept", "is_wanted"),
    [
        (BROWSERS, True),
        ("text/html", True),
        ("TEXT/HTML; q=0.5", True),
        ("application/json;q=0.4, text/html;q=0.5", True),
        ("*/*", False),
        ("", False),
        ("application/json", False),
        ("text/html;q=0", False),
        ("text/html;q=0.4, application/json", False),
        ("text/html;q=many", False),
        (",;,q=", False),
    ],
)
def test_a_client_that_shows_pages_gets_the_page(accept: str, is_wanted: bool):
    assert wanted(Request("GET", "/", {}, (("accept", accept),), b"")) == is_wanted


def test_programs_get_the_paths():
    for status, headers, body in (ask("/"), ask("/", {"accept": BROWSERS}, page=False)):
        assert (status, headers["Content-Type"], headers["Vary"]) == (200, "application/json", "Accept")
        assert b'"/v1/chat/completions":["POST"]' in body
    assert not {"/docs", "/page/{file}"} & set(routes(page=False))


@pytest.mark.parametrize(("path", "accept"), [("/", BROWSERS), ("/docs", BROWSERS), ("/docs", "*/*")])
def test_nothing_but_its_own_files_acts_in_the_page(path: str, accept: str):
    status, headers, body = ask(path, {"accept": accept})
    assert (status, body) == (200, FILES["index.html"].body)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    assert not any(word in headers["Content-Security-Policy"] for word in ("unsafe", "*", "http"))
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")


def test_the_page_connects_to_the_tool_servers_that_the_operator_names():
    servers = ("https://tools.example.org/mcp", "http://127.0.0.1:9000/a/")
    _, headers, body = ask("/page/tool_servers.json", page_tool_servers=servers)
    assert (headers["Content-Type"], json.loads(body)) == ("application/json", ["/mcp", *servers])
    for path in ("/", "/page/tool_servers.json"):
        policy = ask(path, {"accept": BROWSERS}, page_tool_servers=servers)[1]["Content-Security-Policy"]
        assert "; connect-src 'self' https://tools.example.org/mcp http://127.0.0.1:9000/a/; " in policy
    assert json.loads(ask("/page/tool_servers.json")[2]) == ["/mcp"]


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_served_and_not_sent_again(name: str):
    status, headers, body = ask(f"/page/{name}")
    assert (status, headers["Cache-Control"]) == (200, "no-cache")
    assert headers["Content-Type"].split(";")[0] in TYPES
    assert len(body) > 0
    for known in (headers["ETag"], f'"other", {headers["ETag"]}', "*"):
        assert ask(f"/page/{name}", {"if-none-match": known})[::2] == (304, b"")
    assert ask(f"/page/{name}", {"if-none-match": '"other"'})[0] == 200


def test_browsers_get_files_compressed():
    _, headers, plain = ask("/page/main.js", {"accept-encoding": "br, gzip;q=0"})
    assert ("Content-Encoding" in headers, headers["Vary"], plain) == (False, "Accept-Encoding", FILES["main.js"].body)
    status, headers, body = ask("/page/main.js", {"accept-encoding": "gzip, deflate, br"})
    assert (status, headers["Content-Encoding"], gzip.decompress(body)) == (200, "gzip", plain)
    assert 2 * len(body) < len(plain)
    font = next(name for name in FILES if name.endswith(".woff2"))
    assert "Content-Encoding" not in ask(f"/page/{font}", {"accept-encoding": "gzip"})[1]


def test_each_file_is_in_the_package():
    setup = configparser.ConfigParser()
    setup.read(Path(umaserve.__file__).parents[1] / "setup.cfg")
    patterns = [Path(pattern) for pattern in setup["options.package_data"]["umaserve"].split()]
    assert len(FILES) > 20
    for path in (Path("page", name) for name in FILES):
        assert any(len(path.parts) == len(pattern.parts) and path.match(str(pattern)) for pattern in patterns)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js") and not name.startswith("vendor/")])
def test_imports_of_the_page_go_one_way(name: str):
    """Vendored files are below Markdown, then answers, voice and tools, and these below views, which only the frame
    knows."""
    order = ["vendor", "vendor/highlight", "markdown", "answers", "voice", "tools"]
    folder = name.rpartition("/")[0]
    for imported in re.findall(rb'(?:from|import\()\s*"([^"]+)"', FILES[name].body):
        path = posixpath.normpath(posixpath.join(folder, imported.decode()))
        assert path in FILES, path
        other = path.rpartition("/")[0]
        if name == "views.js" or other in (folder, ""):
            continue
        assert other in (order[: order.index(folder)] if folder in order else order), path


@pytest.mark.parametrize(
    "name", ["", "nothing.js", "../web_page.py", "chat", "chat/", "/etc/passwd", "MAIN.JS", "main.js/"]
)
def test_nothing_else_is_served(name: str):
    with pytest.raises(Refusal) as refused:
        ask(f"/page/{name}")
    assert refused.value.status == 404
