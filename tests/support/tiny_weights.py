"""What the writers of tiny voices share: a GGUF file that fills with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

Array = npt.NDArray[np.float32]


class Weights:
    def __init__(self, path: Path, architecture: str, seed: int) -> None:
        self.gguf = GGUFWriter(path, architecture)
        self._random = np.random.default_rng(seed)

    def norm(self, name: str, width: int, *, bias: bool = True) -> None:
        self.tensor(f"{name}.weight", np.ones(width, np.float32))
        if bias:
            self.tensor(f"{name}.bias", np.zeros(width, np.float32))

    def linear(self, name: str, outputs: int, inputs: int) -> None:
        self.add(f"{name}.weight", outputs, inputs)
        self.tensor(f"{name}.bias", np.zeros(outputs, np.float32))

    def conv(self, name: str, outputs: int, inputs: int, taps: int, *, half: bool = True) -> None:
        self.add(f"{name}.weight", outputs, inputs, taps, half=half)
        self.tensor(f"{name}.bias", np.zeros(outputs, np.float32))

    def add(self, name: str, *shape: int, half: bool = False) -> None:
        values = self.random(*shape)
        self.tensor(name, values.astype(np.float16) if half else values)

    def random(self, *shape: int) -> Array:
        """Numbers small enough that what goes in comes out about as large."""
        return self._random.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)

    def tensor(self, name: str, values: npt.NDArray[np.float16] | Array) -> None:
        """Convolutions want halves, all else single precision."""
        self.gguf.add_tensor(name, values)

    def write(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()
