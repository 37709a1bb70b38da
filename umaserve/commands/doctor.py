"""``umaserve doctor``: what the box has, and what is wrong with it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import orjson

from umaserve.commands.barriers import of_daemon
from umaserve.commands.findings import Finding, of_box, of_build, of_model, of_sockets
from umaserve.commands.own_daemon import with_own_socket
from umaserve.commands.parser import Parser, add_settings
from umaserve.settings import models
from umaserve.settings.daemon import SETTINGS
from umaserve.system import logs
from umaserve.system.memory import available_bytes
from umaserve.system.progress import ProgressBar

DESCRIPTION = """\
Checks this machine for a daemon with these flags, and reports what is wrong and how to correct it: the processor and
what llama.cpp was built for, GPUs, huge pages, the clock, limits, the folder for computed prompts, sockets and ports,
systemd's unit, how the threads of a running daemon wait for one another (it generates a few tokens for this check), and
each model: whether its file is complete, fits into memory, and has a chat template with tools.

Each line is ok, a note (it works, but could be better), or wrong. The exit status is 1 if anything is wrong.

examples:
  umaserve doctor
  umaserve doctor --config /etc/umaserve/umaserve.toml
  umaserve doctor --model model.gguf --http 0.0.0.0:8080 --json
"""

FIRST = ("socket", "http", "model", "models_dir", "n_ctx", "parallel", "max_sessions")

Write = Callable[[str], None]


def run(arguments: Sequence[str], write: Write) -> int:
    """Look at everything and return the exit status. Raises ConfigError as `Settings.load`."""
    parser = Parser("umaserve doctor", usage="umaserve doctor [FLAGS]", description=DESCRIPTION, add_help=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings(parser, SETTINGS, arguments, FIRST)
    flags = vars(parser.parse_args(arguments))
    as_json = flags.pop("json")
    loaded = with_own_socket(SETTINGS.load(flags, os.environ), os.environ)
    logs.configure("error", "text")
    catalogue = models.read(loaded.config, loaded.file)
    left, bar = available_bytes(), ProgressBar("looking", sys.stderr)
    groups = [of_box(loaded.config), of_build(_wanted), of_sockets(loaded.config)]
    groups += [of_daemon(loaded.config.socket)]
    groups += [of_model(spec, left, _wanted) for spec in catalogue.models]
    found = []
    for done, group in enumerate(groups):
        bar.show(done / len(groups))
        found += list(group)
    bar.clear()
    wrong = sum(one.level == "wrong" for one in found)
    if as_json:
        write(orjson.dumps({"wrong": wrong, "findings": [asdict(one) for one in found]}).decode() + "\n")
    else:
        write("".join(itertools.chain(*(lines(one, _width(found)) for one in found))))
        write("Nothing is wrong.\n" if not wrong else f"{wrong} of {len(found)} checks have found something wrong.\n")
    return int(bool(wrong))


def lines(finding: Finding, width: int) -> Iterator[str]:
    """Lines of text for a finding; ``width``: of the widest of what findings are about."""
    yield f"{finding.level:<5}  {finding.about:<{width}}  {_plain(finding.found)}\n"
    if finding.advice:
        yield f"{'':<5}  {'':<{width}}  → {_plain(finding.advice)}\n"


def _plain(text: str) -> str:
    """Remove what would steer a terminal: some words are a model file's."""
    return "".join(character if character.isprintable() else " " for character in text)


def _width(found: Sequence[Finding]) -> int:
    return max(len(one.about) for one in found)


def _wanted() -> bool:
    return True
