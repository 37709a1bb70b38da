"""Measurements of ``umaserve tune``: the weights that the daemon would load, and how fast its engine is with them."""

from __future__ import annotations

import dataclasses
import sys
import time

from umaserve.commands import tune_table
from umaserve.commands.tune_search import Change, NoTimeLeft
from umaserve.engine.files.weights import Weights, choose
from umaserve.engine.llama.model import find
from umaserve.engine.speeds import Speeds, measured
from umaserve.settings.daemon import Config
from umaserve.system import program
from umaserve.system.progress import ProgressBar

_CONVERTING = 0.5
"""The share of the time in which a copy of the weights may be converted."""


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
            print(
                "Converting or comparing the weights takes too long, so they are measured as they are. Start the "
                "daemon once, which does so, or give more --seconds.",
                file=sys.stderr,
                flush=True,
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
