"""Says which model answers where none has the name that was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from umaserve.core.model_names import DEFAULT, spellings
from umaserve.settings.sources import nearest, printable


def another_model(asked: str, names: Mapping[str, Sequence[str]]) -> str:
    """A warning where no model is called ``asked``; empty where one is. ``names``: the other names of each model, the
    default one, which answers then, first."""
    known = [name for model, others in names.items() for name in (model, *others)]
    if not known or not {DEFAULT, "", *known}.isdisjoint(spellings(asked)):
        return ""
    return f"no model is named {printable(asked)}{nearest(asked, known)}: {printable(known[0])} answers"
