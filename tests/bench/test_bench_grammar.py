"""The benchmark of grammars runs, and measures answers that are held to a schema."""

from __future__ import annotations

import json
import sys

import pytest

from bench import grammar, hard_grammars
from umaserve.engine.grammar import json_schema
from umaserve.engine.llama.model import find


def test_it_measures_every_number_of_streams_and_size(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["bench.grammar", "--streams", "1", "2", "--ticks", "2"])
    monkeypatch.setattr(grammar, "KIB", (1,))
    monkeypatch.setenv("UMA_WEIGHTS", "as-is")
    assert grammar.main() == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [row for row in rows if row[0].isdigit()] == ["1", "1", "2", "2", "1.7"]


def test_it_measures_the_hardest_grammars_with_a_vocabulary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    few = dict(list(hard_grammars.grammars().items())[-3:])
    monkeypatch.setattr(hard_grammars, "grammars", lambda: few)
    monkeypatch.setattr(hard_grammars, "STEPS", 2)
    monkeypatch.setattr(sys, "argv", ["bench.grammar", "--vocabulary", find("")])
    assert grammar.main() == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert rows[2:] == list(few)
    monkeypatch.setattr(sys, "argv", ["bench.grammar", "--vocabulary", "/none.gguf"])
    assert grammar.main() == 2


@pytest.mark.parametrize("kib", grammar.KIB)
def test_its_schemas_have_the_size_they_are_named_by(kib: int):
    text = json.dumps(grammar._schema_of(kib * 1024))
    assert kib * 1024 <= len(text) < (kib + 3) * 1024
    json_schema.enforced(text)
