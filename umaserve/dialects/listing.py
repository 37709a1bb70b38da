"""The daemon's models in lists, and by the names that clients call them."""

from __future__ import annotations

from collections.abc import Sequence

from umaserve.core.errors import ModelNotFound
from umaserve.core.events import ListedModel
from umaserve.core.model_names import DEFAULT, spellings
from umaserve.dialects.facts import Facts


def find_model(models: Sequence[ListedModel], name: str) -> ListedModel | None:
    """The one of ``models`` that is called ``name``."""
    if name == DEFAULT:
        return next((model for model in models if model.default), None)
    found = (model for one in spellings(name) for model in models if one in (model.name, *model.aliases))
    return next(found, None)


def named(facts: Facts, name: str) -> ListedModel:
    """The listed model that is called ``name``; raises ``ModelNotFound`` if there is none."""
    model = find_model(facts.models(), name)
    if model is None:
        raise ModelNotFound(name)
    return model
