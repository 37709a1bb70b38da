"""``python -m bench``: run the measurements and print them as Markdown, ready to be pasted."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import copying, decode, dialects, idle, llama_server, prefixes, pressure, short, storm, wire
from bench.report import load_average, machine
from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine.files import gguf
from umaserve.engine.files.weights import choose
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.settings.sources import Loaded

BY_CLIENTS = ("decode", "dialects")
BESIDE = ("storm", "prefixes", "short", "copying", "pressure")
WITHOUT_MODEL = ("wire", "idle")
MEASUREMENTS = (*BY_CLIENTS, *WITHOUT_MODEL, *BESIDE)
MODEL_CLIENTS = (1, 4, 8, 16, 32)
WIRE_CLIENTS = (1, 16, 256)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not options.picture.parent.is_dir():
        parser.error(f"--picture: expected a file in a folder that exists, got {str(options.picture)!r}")
    if options.threads is not None:
        os.environ["UMA_THREADS"] = str(options.threads)
    wanted = {options.only} if options.only else {*MEASUREMENTS}
    model_clients = options.clients or MODEL_CLIENTS
    try:
        loaded = SETTINGS.load({}, os.environ)
        if wanted & {*BY_CLIENTS} and max(model_clients) > loaded.config.parallel:
            os.environ["UMA_PARALLEL"] = str(max(model_clients))
            loaded = SETTINGS.load({}, os.environ)
        model = _model_file(loaded.config) if wanted - {*WITHOUT_MODEL} else "no model"
        llama_server.binary()
    except (ConfigError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    before = load_average()
    try:
        if "decode" in wanted:
            print(decode.report(model_clients, options.tokens, options.repeats), flush=True)
        if "dialects" in wanted:
            print(dialects.report(model_clients, options.tokens, options.repeats), flush=True)
        if "wire" in wanted:
            print(wire.report(options.clients or WIRE_CLIENTS, options.repeats), flush=True)
        if "idle" in wanted:
            print(idle.report(), flush=True)
        if "storm" in wanted:
            print(storm.report(options.repeats, options.picture), flush=True)
        if "prefixes" in wanted:
            print(prefixes.report(options.repeats), flush=True)
        if "short" in wanted:
            print(short.report(options.repeats), flush=True)
        if "copying" in wanted:
            print(copying.report(options.repeats), flush=True)
        if "pressure" in wanted:
            print(pressure.report(options.repeats), flush=True)
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
        description="Measure umaserve against a bare llama.cpp loop, beside llama-server, and the wire by itself.",
        epilog="The bare loop, the daemon and llama-server take their settings from the same UMA_* variables, and "
        "UMA_CONFIG. llama-server is measured where LLAMA_SERVER names its binary. Where there are more clients than "
        "UMA_PARALLEL, it is raised to their number, for all sides.",
        allow_abbrev=False,
    )
    parser.add_argument("--only", choices=MEASUREMENTS, help="one of the measurements (default: all)")
    parser.add_argument(
        "--clients",
        type=_at_least(1),
        nargs="+",
        metavar="N",
        help=f"clients at once, for {', '.join(BY_CLIENTS)} (default: {_spaced(MODEL_CLIENTS)}) "
        f"and wire (default: {_spaced(WIRE_CLIENTS)})",
    )
    parser.add_argument(
        "--tokens",
        type=_at_least(2),
        default=128,
        metavar="N",
        help=f"of each stream, for {', '.join(BY_CLIENTS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=_at_least(1), default=3, metavar="N", help="of each run (default: %(default)s)"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        default=Path(__file__).with_name("storm.png"),
        metavar="FILE",
        help="where storm's picture goes, a PNG (default: %(default)s)",
    )
    parser.add_argument("--threads", type=_at_least(1), metavar="N", help="compute threads of each side")
    return parser


def _model_file(settings: Config) -> str:
    """The name of the model's file, checked here so that a bad one fails in one line, and what was made of it."""
    path = find(settings.model)
    gguf.check(path)
    weights = choose(path, settings, lambda _fraction: True)
    how = " converted to Q8_0" if weights.converted_from else "" if weights.repacked else ", not repacked"
    return Path(path).name + how


def _at_least(low: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"expected at least {low}, got {value}")
        return value

    return whole_number


def _spaced(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


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
