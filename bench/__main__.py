"""``python -m bench``: run the measurements and print them as Markdown, ready to be pasted."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import decode, dialects, idle, llama_server, wire
from bench.report import load_average, machine
from umaserve import config
from umaserve.config import Config, Loaded
from umaserve.engine import gguf
from umaserve.engine.model import find
from umaserve.errors import ConfigError, ModelError

MEASUREMENTS = ("decode", "dialects", "wire", "idle")
WITH_MODEL = {"decode", "dialects"}
MODEL_CLIENTS = (1, 4, 8, 16)
WIRE_CLIENTS = (1, 16, 256)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.threads is not None:
        os.environ["UMA_THREADS"] = str(options.threads)
    wanted = {options.only} if options.only else {*MEASUREMENTS}
    try:
        loaded = config.load({}, os.environ)
        model = _model_file(loaded.config) if wanted & WITH_MODEL else "no model"
        llama_server.binary()
    except (ConfigError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    model_clients = options.clients or MODEL_CLIENTS
    if wanted & WITH_MODEL and max(model_clients) > loaded.config.parallel:
        parser.error(f"more clients than sequences ({loaded.config.parallel}): raise UMA_PARALLEL")
    before = load_average()
    try:
        if "decode" in wanted:
            print(decode.report(model_clients, options.tokens, options.repeats), flush=True)
        if "dialects" in wanted:
            print(dialects.report(model_clients, options.tokens, options.repeats), flush=True)
        if "wire" in wanted:
            print(wire.report(options.clients or WIRE_CLIENTS, options.repeats), flush=True)
        if "idle" in wanted:
            print(idle.report())
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
        description="Measure umaserve against a bare llama.cpp loop, and the wire by itself.",
        epilog="The bare loop, the daemon and llama-server take their settings from the same UMA_* variables, and "
        "UMA_CONFIG. llama-server is measured where LLAMA_SERVER names its binary.",
        allow_abbrev=False,
    )
    parser.add_argument("--only", choices=MEASUREMENTS, help="one of the measurements (default: all)")
    parser.add_argument(
        "--clients",
        type=_at_least(1),
        nargs="+",
        metavar="N",
        help=f"clients at once (default: {_spaced(MODEL_CLIENTS)}; wire {_spaced(WIRE_CLIENTS)})",
    )
    parser.add_argument(
        "--tokens", type=_at_least(2), default=128, metavar="N", help="of each stream (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=_at_least(1), default=3, metavar="N", help="of each run (default: %(default)s)"
    )
    parser.add_argument("--threads", type=_at_least(1), metavar="N", help="compute threads of each side")
    return parser


def _model_file(settings: Config) -> str:
    """The name of the model's file, checked here so that a bad one fails in one line."""
    path = find(settings.model)
    gguf.check(path)
    return Path(path).name


def _at_least(low: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"expected at least {low}, got {value}")
        return value

    return whole_number


def _spaced(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _changed(loaded: Loaded) -> str:
    """The settings that are not the defaults."""
    changed = [
        f"{key} {config.SETTINGS[key].kind.render(getattr(loaded.config, key))}"
        for key, origin in loaded.origins.items()
        if origin != "default"
    ]
    return ", ".join(changed) or "default settings"


if __name__ == "__main__":
    sys.exit(main())
