"""``umaserve models list``, ``load`` and ``unload``: the models of a running daemon."""

from __future__ import annotations

import argparse
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from umaserve.commands.http_call import DEFAULT_URL, CallError, call
from umaserve.settings.sources import nearest, printable
from umaserve.system.progress import ProgressBar

COMMANDS = ("list", "load", "unload")
DESCRIPTION = """\
Lists, loads and unloads the models of a running daemon that serves HTTP. It loads a model when a request names it, and
unloads it to make room for another; these commands do so in advance.

examples:
  umaserve models list
  umaserve models load qwen3-8b
  umaserve models unload qwen3-8b --url unix:/run/uma-http.sock
"""
LOOK_S = 0.2

Write = Callable[[str], None]
Model = dict[str, Any]


def run(parser: argparse.ArgumentParser, arguments: Sequence[str], write: Write) -> int:
    """Fill ``parser``, run one of the commands and return its exit status."""
    commands = parser.add_subparsers(dest="command", metavar="{" + ",".join(COMMANDS) + "}", required=True)
    about = {
        "list": "list the models: whether each is loaded, its size, memory and other names; the first, with a star, is "
        "the default one",
        "load": "load a model, and wait until it is loaded; idle models are unloaded where it needs their memory",
        "unload": "unload a model once its running requests have ended; the next request that names it loads it again",
    }
    for name, text in about.items():
        command = commands.add_parser(name, help=text, description=f"{text.capitalize()}.", allow_abbrev=False)
        if name != "list":
            command.add_argument("model", metavar="NAME", help="the name of the model, or an alias")
        command.add_argument(
            "--url", default=DEFAULT_URL, help="where the daemon serves HTTP, or unix:PATH (default: %(default)s)"
        )
        command.add_argument("--key", help="API key, if the daemon has --api-keys")
    options = parser.parse_args(arguments)
    try:
        match options.command:
            case "list":
                write(table(_models(options), time.time()))
            case "load":
                _move(options)
                _wait_until_loaded(options)
            case _:
                _move(options)
    except CallError as error:
        print(f"umaserve: {error}", file=sys.stderr)
        return 1
    except (KeyError, TypeError):
        print(f"umaserve: {options.url}: the server there is not umaserve, or is an older version", file=sys.stderr)
        return 1
    return 0


def _models(options: argparse.Namespace) -> list[Model]:
    data: list[Model] = call(options.url, options.key, "GET", "/models")["data"]
    return data


def _move(options: argparse.Namespace) -> None:
    try:
        call(options.url, options.key, "POST", f"/models/{options.command}", {"model": options.model})
    except CallError as error:
        if error.status != 404:
            raise
        known = [name for one in _models(options) for name in one["aliases"]]
        shown = printable(options.model)
        raise CallError(f"no model is named {shown}{nearest(options.model, known)}: see umaserve models list") from None


def _wait_until_loaded(options: argparse.Namespace) -> None:
    bar = ProgressBar(f"loading {printable(options.model)}", sys.stderr)
    path = f"/v1/models/{urllib.parse.quote(options.model, safe='')}"
    while (status := call(options.url, options.key, "GET", path)["status"])["value"] == "loading":
        bar.show(status["progress"])
        time.sleep(LOOK_S)
    bar.clear()
    if status["value"] != "loaded":
        raise CallError(f"{printable(options.model)} could not be loaded: see the server's log")


def table(models: Sequence[Model], now: float) -> str:
    """A line for each, the default one first."""
    titles = ("  NAME", "STATE", "SIZE", "MEMORY", "LAST USED", "OTHER NAMES")
    rows = [titles, *(tuple(_cells(one, now, first=one is models[0])) for one in models)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def _cells(model: Model, now: float, *, first: bool) -> Iterator[str]:
    status = model["status"]
    yield ("* " if first else "  ") + printable(model["id"])
    if status["value"] == "loading":
        yield f"loading {status.get('progress', 0.0):.0%}"
    elif status["value"] == "downloading":
        done, total = (sum(file[key] for file in status["progress"].values()) for key in ("done", "total"))
        yield f"downloading {done / total:.0%}" if total else "downloading"
    else:
        yield "failed" if status.get("failed") else status["value"]
    # The hub tells the size of a download later.
    unknown = "" if status["value"] == "downloading" else "missing"
    yield f"{model['size'] >> 20} MiB" if model["size"] else unknown
    yield f"{model['needed'] >> 20} MiB"
    yield _ago(now - model["last_used"]) if "last_used" in model else "never"
    yield ", ".join(printable(name) for name in model["aliases"] if name != model["id"])


def _ago(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds // unit:.0f} {name} ago"
    return f"{max(0.0, seconds):.0f} s ago"
