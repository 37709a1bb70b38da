"""``umaserve tune``: measure which settings make a model fastest on this box."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from umaserve.commands import tune_table
from umaserve.commands.tune_search import RULE, Found, NoTimeLeft, search
from umaserve.core.errors import ModelError
from umaserve.settings.daemon import SETTINGS
from umaserve.system import logs, program
from umaserve.system.cores import usable_cores

SECONDS = 120
DESCRIPTION = f"""\
Measures which settings make a model fastest on this machine, in two minutes at most, and prints them as lines for the
daemon's configuration file. First stop other programs that compute here, daemons included: they distort the results.

examples:
  umaserve tune --model model.gguf
  umaserve tune --model model.gguf > umaserve.toml && umaserve --config umaserve.toml
  umaserve tune --config umaserve.toml

It tries the weights as they are, converted, and not repacked (weights), numbers of threads (threads, threads_batch),
flash attention (flash_attn), types of the KV cells (kv_type, kv_type_k), and tokens in one pass (n_ubatch). Each is
measured in a process of its own, with the daemon's engine: the tokens per second of one stream, of as many streams as
parallel allows, and of prompts, and the memory. All other settings, such as n_ctx and parallel, are those of --config
or of UMA_... variables, as for the daemon.

{RULE}

Standard output gets only the lines for the configuration file; the table goes to standard error.
"""
Write = Callable[[str], None]


def run(parser: argparse.ArgumentParser, arguments: Sequence[str], write: Write) -> int:
    """Fill ``parser``, measure, and ``write`` the lines; returns the exit status. Raises ConfigError as
    `Settings.load`."""
    unset = argparse.SUPPRESS
    parser.add_argument(
        "--model", metavar="PATH", default=unset, help="GGUF file (default: $UMA_MODEL, else the default model)"
    )
    parser.add_argument(
        "--config", metavar="PATH", default=unset, help="the daemon's configuration file (default: $UMA_CONFIG)"
    )
    parser.add_argument(
        "--seconds", metavar="N", type=int, default=SECONDS, help="how long to measure at most (default: %(default)s)"
    )
    flags = vars(parser.parse_args(arguments))
    seconds: int = flags.pop("seconds")
    if seconds < 1:
        parser.error(f"--seconds: expected 1 or more, got {seconds}")
    # Imported here: help and man pages need no llama.cpp.
    from umaserve.commands.tune_measurements import Measurements

    config = SETTINGS.load(flags, os.environ).config
    logs.configure("warning", "text")
    found = Found()
    try:
        measurements = Measurements(config, flags, seconds)
        search(config, usable_cores(), measurements.other_weights, measurements, found)
    except NoTimeLeft:
        return _failed(f"not even the present settings could be measured in {seconds} s: give more with --seconds")
    except (ModelError, program.ProgramError, OSError) as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        if found.rows:
            _show(tune_table.table(found, config.parallel), "Interrupted: the other settings were not measured.")
        raise
    best = found.rows[found.best].change
    notes = [tune_table.notes(found), measurements.note]
    _show(tune_table.table(found, config.parallel), "", *filter(None, notes), "", RULE, "")
    _show(f"Best: {tune_table.named(best)}. The lines for the daemon's configuration file:")
    write(tune_table.toml(config, best))
    return 0


def _show(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def _failed(why: str) -> int:
    _show(f"umaserve: {why}")
    return 1
