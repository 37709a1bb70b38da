"""``umaserve tune``: measure which settings make a model fastest on this box."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence

from umaserve.commands import tune_table
from umaserve.commands.tune_search import RULE, Change, Found, NoTimeLeft, search
from umaserve.core.errors import ModelError
from umaserve.engine.files.weights import Weights, choose
from umaserve.engine.llama.model import find
from umaserve.engine.speeds import Speeds, measured
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.system import logs, program
from umaserve.system.cores import usable_cores
from umaserve.system.progress import ProgressBar

SECONDS = 120
DESCRIPTION = f"""\
Measures which settings make a model fastest on this box, in two minutes at most, and prints them as lines for the
daemon's configuration file. Meanwhile stop what else computes here, a daemon too: it would falsify the measurement.

examples:
  umaserve tune --model model.gguf
  umaserve tune --model model.gguf > umaserve.toml && umaserve --config umaserve.toml
  umaserve tune --config umaserve.toml

Tried are the model's own weights against converted or not repacked ones (weights), numbers of threads (threads,
threads_batch), flash attention (flash_attn), types of the KV cells (kv_type, kv_type_k), and tokens in one pass
(n_ubatch). Each is measured in a process of its own, with the daemon's engine: the tokens per second of one stream, of
as many streams as parallel says, and of prompts, and the memory. All other settings, such as n_ctx and parallel, are
those of --config or UMA_... variables, as they would be for the daemon.

{RULE}

Standard output gets only the lines for the configuration file; the table goes to standard error.
"""
_CONVERTING = 0.5
"""The share of the time in which a copy of the weights may be converted."""

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


class Measurements:
    """Measures changes, each in a process of its own, until the time is over; shows how far that is."""

    def __init__(self, config: Config, flags: dict[str, str], seconds: int) -> None:
        """Converts the weights, if they may be faster then. ``flags`` are the command's. Raises ``ModelError``."""
        self._path = find(config.model)
        self._flags = flags
        self._began = time.monotonic()
        self._seconds = seconds
        self._longest_s = 0.0
        as_is = Weights(self._path)
        present = self._loaded(config)
        self.note = tune_table.weights_note(_way(present), present.why)
        """Note on what was measured before the daemon's engine was, to choose the weights; empty: nothing."""
        self._weights = {"": present, "as-is": as_is}
        """Weights that each value of ``weights`` loads."""
        self.other_weights = "as-is" if _way(present) != "as-is" else ""
        """The value of ``weights`` with which others are loaded than at present; empty: there is none."""
        if not self.other_weights and present.other and self._may_convert():
            loaded = self._loaded(dataclasses.replace(config, weights=present.other))
            if _way(loaded) != "as-is":
                self.other_weights = present.other
                self._weights[present.other] = loaded

    def __call__(self, change: Change, prompt_tokens: int) -> Speeds:
        """Measure ``change``, as ``tune_search.Measure``."""
        began_s = self._passed_s()
        left_s = self._seconds - began_s
        if left_s < self._longest_s:
            raise NoTimeLeft
        weights = self._weights[change.get("weights", "")]
        # They are chosen already. For another number of threads, the daemon would measure them anew.
        how = "as-is" if weights.repacked else "mapped"
        settings = {**self._flags, **change, "model": weights.path, "weights": how}
        bar = ProgressBar(f"{tune_table.named(change)} ", sys.stderr)
        try:
            return measured(settings, prompt_tokens, wanted=lambda: self._shown(bar), max_s=left_s)
        except program.ProgramError:
            if self._passed_s() >= self._seconds:
                raise NoTimeLeft from None
            raise
        finally:
            bar.clear()
            self._longest_s = max(self._longest_s, self._passed_s() - began_s)

    def _loaded(self, config: Config) -> Weights:
        """The weights that the daemon loads."""
        bar = ProgressBar("weights ", sys.stderr)
        late = False

        def wanted(_fraction: float) -> bool:
            nonlocal late
            late = not self._may_convert()
            return self._shown(bar) and not late

        weights = choose(self._path, config, wanted)
        bar.clear()
        if late:
            _show(
                "Converting or comparing the weights takes too long, so they are measured as they are. Start the "
                "daemon once, which does so, or give more --seconds."
            )
        return weights

    def _may_convert(self) -> bool:
        return self._passed_s() <= self._seconds * _CONVERTING

    def _passed_s(self) -> float:
        return time.monotonic() - self._began

    def _shown(self, bar: ProgressBar) -> bool:
        bar.show(min(1.0, self._passed_s() / self._seconds))
        return True


def _way(weights: Weights) -> str:
    """The value of the setting that loads them."""
    return "converted" if weights.converted_from else "as-is" if weights.repacked else "mapped"


def _show(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def _failed(why: str) -> int:
    _show(f"umaserve: {why}")
    return 1
