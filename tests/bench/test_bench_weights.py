"""The comparison of weights: texts from the model itself, and how far two models' distributions are apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench import weights
from bench.weights import LENGTH, Reader, divergences, report, texts_of
from umaserve.engine.files.row_times import load_small
from umaserve.engine.llama.model import find
from umaserve.settings.daemon import Config


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    made = load_small(find(""), 1, 1, LENGTH)
    yield Reader(made)
    made.free()


def test_every_row_is_a_distribution_and_none_depends_on_how_the_text_is_divided(reader: Reader) -> None:
    tokens = reader.model.tokenize("Once upon a time, in a small village by the sea")
    whole = reader.log_probabilities(tokens)
    assert whole.shape == (len(tokens), reader.model.n_vocab)
    assert np.allclose(np.exp(whole).sum(axis=1), 1.0)
    first, rest = reader.log_probabilities(tokens[:5]), reader.log_probabilities(tokens[5:], 5)
    assert np.allclose(np.exp(np.concatenate([first, rest])), np.exp(whole), atol=0.02)


def test_a_model_does_not_diverge_from_itself(reader: Reader) -> None:
    found, same = divergences(reader, reader, [reader.model.tokenize("Once upon a time"), [1, 2, 3]])
    assert np.allclose(found, 0.0)
    assert same == 1.0


def test_texts_repeat_by_their_seed(reader: Reader) -> None:
    texts = texts_of(reader, LENGTH + 20)
    assert sum(map(len, texts)) >= LENGTH + 20
    assert all(len(text) <= LENGTH for text in texts)
    assert texts_of(reader, LENGTH + 20) == texts


def test_the_report_compares_the_model_with_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "SPEED_S", 0.0)
    monkeypatch.setattr(weights, "ROWS", (1, 2))
    text = report(find(""), Config(threads=1), 10)
    assert f"{Path(find('')).stem} (Q4_1, " in text
    rows = [line.split("|") for line in text.splitlines() if line.endswith("% |") and line.count("|") == 7]
    assert len(rows) == 3
    for row in rows:
        mean, _, p99, largest, same = (cell.strip() for cell in row[2:-1])
        assert 0 < float(mean) < float(p99) <= float(largest) < 1
        assert 90 < float(same.rstrip("%")) <= 100
