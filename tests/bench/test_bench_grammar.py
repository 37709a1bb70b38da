"""The benchmark of grammars runs, and measures answers that are held to a schema."""

from __future__ import annotations

import json
import sys

import pytest

from bench import grammar
from umaserve.engine import json_schema


def test_it_measures_every_number_of_streams_and_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["bench.grammar", "--streams", "1", "2", "--ticks", "2"])
    monkeypatch.setattr(grammar, "KIB", (1,))
    monkeypatch.setenv("UMA_WEIGHTS", "as-is")
    assert grammar.main() == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [row for row in rows if row[0].isdigit()] == ["1", "1", "2", "2", "1.7"]


@pytest.mark.parametrize("kib", grammar.KIB)
def test_its_schemas_have_the_size_they_are_named_by(kib: int):
    text = json.dumps(grammar._schema_of(kib * 1024))
    assert kib * 1024 <= len(text) < (kib + 3) * 1024
    json_schema.enforced(text)
