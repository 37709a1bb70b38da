"""``python -m bench``: the frontier of a storm of prompts, the wire alone, and idle connections, as Markdown."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import idle, llama_server, storm, wire
from bench.report import load_average, machine
from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine.files import gguf
from umaserve.engine.files.weights import choose
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.settings.sources import Loaded

MEASUREMENTS = ("storm", "wire", "idle")
WIRE_CLIENTS = (1, 16, 256)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.picture.parent.is_dir():
        parser.error(f"--picture: expected a file in a folder that exists, got {str(options.picture)!r}")
    wanted = {options.only} if options.only else {*MEASUREMENTS}
    try:
        loaded = SETTINGS.load({}, os.environ)
        model = _model_file(loaded.config) if "storm" in wanted else "no model"
        llama_server.binary()
    except (ConfigError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    before = load_average()
    try:
        if "storm" in wanted:
            print(storm.report(options.repeats, options.picture), flush=True)
        if "wire" in wanted:
            print(wire.report(options.clients, options.repeats), flush=True)
        if "idle" in wanted:
            print(idle.report(), flush=True)
    except (subprocess.CalledProcessError, RuntimeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    print(f"{machine()}; {model}; {_changed(loaded)}.")
    print(f"Load average before: {before}; after: {load_average()}.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench",
        description="Measure a stream's gaps in a storm of prompts beside llama-server's, and the wire by itself.",
        epilog="Both servers take their settings from the same UMA_* variables, and UMA_CONFIG. llama-server is "
        "measured where LLAMA_SERVER names its binary.",
        allow_abbrev=False,
    )
    parser.add_argument("--only", choices=MEASUREMENTS, help="one of the measurements (default: all)")
    parser.add_argument(
        "--clients",
        type=_at_least_1,
        nargs="+",
        default=WIRE_CLIENTS,
        metavar="N",
        help=f"clients at once, for wire (default: {' '.join(map(str, WIRE_CLIENTS))})",
    )
    parser.add_argument(
        "--repeats", type=_at_least_1, default=3, metavar="N", help="of each run (default: %(default)s)"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path(__file__).with_name("storm.png"),
        metavar="FILE",
        help="where storm's picture goes, a PNG (default: %(default)s)",
    )
    return parser


def _model_file(settings: Config) -> str:
    """The name of the model's file, checked here so that a bad one fails in one line, and what was made of it."""
    path = find(settings.model)
    gguf.check(path)
    weights = choose(path, settings, lambda _fraction: True)
    how = " converted to Q8_0" if weights.converted_from else "" if weights.repacked else ", not repacked"
    return Path(path).name + how


def _at_least_1(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {value}")
    return value


def _changed(loaded: Loaded[Config]) -> str:
    """The settings that are not the defaults."""
    changed = [
        f"{key} {SETTINGS.by_key[key].kind.render(getattr(loaded.config, key))}"
        for key, origin in loaded.origins.items()
        if origin != "default"
    ]
    return ", ".join(changed) or "default settings"


if __name__ == "__main__":
    sys.exit(main())
