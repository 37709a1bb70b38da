"""``umaserve keys``: make, list and revoke the API keys in a file, and make such a file of an older relay's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from umaserve.access.key_entries import CLASSES, Key
from umaserve.access.keys import KeyFile
from umaserve.access.sqlite_keys import convert
from umaserve.core.errors import ConfigError, RequestError

DESCRIPTION = """\
Makes, lists and revokes API keys, which clients of a daemon with --api-keys, or of a relay with --client-keys, send as
"Authorization: Bearer KEY".

examples:
  umaserve keys add alice --api-keys keys.json
  umaserve keys add nightly --api-keys keys.json --class background --tokens-per-minute 20000
  umaserve keys add boss --api-keys keys.json --class operator
  umaserve keys add guest --api-keys keys.json --model small --model embedder
  umaserve keys list --api-keys keys.json
  umaserve keys revoke alice --api-keys keys.json
  umaserve --http 127.0.0.1:8080 --api-keys keys.json

The file contains only hashes of the keys. A running daemon or relay follows a change within about a second.
"""
_ABOUT_CONVERT = """\
Makes a file of keys of the SQLite file that an older relay has kept: with all names, terms, ids and revocations. Stop
that relay first: what it changes later is not in the new file.
"""


def run(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Fill ``parser``, run one of the commands and return its exit status. Raises ConfigError as `KeyFile`."""
    commands = parser.add_subparsers(dest="command", metavar="{add,list,revoke,convert}", required=True)

    about = "make a key and print it, this one time; makes the file if it is missing"
    add = commands.add_parser("add", help=about, description=f"{about.capitalize()}.", allow_abbrev=False)
    add.add_argument(
        "name", metavar="NAME", help="the name of the key, for logs and keys list: 1 to 64 of A-Z, a-z, 0-9, ., _ and -"
    )
    add.add_argument(
        "--class",
        dest="group",
        choices=CLASSES,
        default="interactive",
        help=(
            "class of its requests: background waits for interactive; operator is interactive, and may see and end"
            " the requests of others (default: %(default)s)"
        ),
    )
    limit = "most %s per minute; 0: no limit (default: the daemon's --rate-%s, at a relay no limit)"
    add.add_argument("--requests-per-minute", type=float, metavar="N", help=limit % ("requests", "requests"))
    add.add_argument("--tokens-per-minute", type=float, metavar="N", help=limit % ("generated tokens", "tokens"))
    add.add_argument(
        "--model",
        dest="models",
        action="append",
        default=[],
        metavar="NAME",
        help="a model that the key may use; give the flag again for each further one (default: all)",
    )

    about = "list the names, classes, limits and models of the keys"
    listing = commands.add_parser("list", help=about, description=f"{about.capitalize()}.", allow_abbrev=False)

    about = "make a key invalid"
    revoke = commands.add_parser("revoke", help=about, description=f"{about.capitalize()}.", allow_abbrev=False)
    revoke.add_argument("name", metavar="NAME", help="the name of the key, as keys list shows it")

    about = "make a file of keys of the SQLite file that an older relay has kept"
    converting = commands.add_parser("convert", help=about, description=_ABOUT_CONVERT, allow_abbrev=False)
    converting.add_argument("old", metavar="OLD", help="the SQLite file, which is not changed")
    converting.add_argument("new", metavar="NEW", help="the file to make, for the relay's --client-keys")

    for command in (add, listing, revoke):
        command.add_argument(
            "--api-keys",
            metavar="FILE",
            default=os.environ.get("UMA_API_KEYS", ""),
            help="the file of keys (default: $UMA_API_KEYS)",
        )
    options = parser.parse_args(arguments)
    if options.command == "convert":
        print(f"{options.new}: {convert(options.old, options.new)} keys, with those that are revoked")
        return 0
    if not options.api_keys:
        parser.error("no file of keys: name one with --api-keys FILE or UMA_API_KEYS")
    match options.command:
        case "add":
            return _add(options)
        case "list":
            print(_table(KeyFile(options.api_keys).list()))
            return 0
        case _:
            return _revoke(options)


def _add(options: argparse.Namespace) -> int:
    try:
        presented = KeyFile(options.api_keys, missing_ok=True).add(
            options.name,
            group=options.group,
            requests_per_minute=options.requests_per_minute,
            tokens_per_minute=options.tokens_per_minute,
            models=options.models,
        )
    except RequestError as error:
        raise ConfigError(error.message) from None
    # Standard output gets only the key, for scripts.
    print(presented)
    print("umaserve: keep this key: it is not stored and can't be shown again", file=sys.stderr)
    return 0


def _revoke(options: argparse.Namespace) -> int:
    if KeyFile(options.api_keys).revoke(options.name):
        return 0
    print(f"umaserve: {options.api_keys}: no key is named {options.name}: see umaserve keys list", file=sys.stderr)
    return 1


def _table(keys: Sequence[Key]) -> str:
    rows = [("NAME", "CLASS", "REQUESTS/MINUTE", "TOKENS/MINUTE", "CREATED", "MODELS")]
    for key in keys:
        if key.revoked is None:
            limits = (_shown(key.requests_per_minute), _shown(key.tokens_per_minute))
            rows.append((key.name, key.group, *limits, key.created[:10], ", ".join(key.models) or "all"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _shown(limit: float | None) -> str:
    if limit is None:
        return "default"
    return f"{limit:.10g}" if limit else "no limit"
