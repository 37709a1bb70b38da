"""llama-server's ``/models/sse``: events of how the models differ from what a client was told before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from umaserve.core.events import ListedModel, ModelState
from umaserve.dialects.openai.models import status_value

Event = dict[str, Any]


def changes(before: Sequence[ListedModel], now: Sequence[ListedModel]) -> Iterator[Event]:
    """Events that tell a client, who knows how the models were ``before``, how they are ``now``."""
    known = {one.name: one for one in before}
    for name in known.keys() - {one.name for one in now}:
        yield {"model": name, "event": "model_remove"}
    if any(one.name not in known for one in now):
        yield {"model": "*", "event": "models_reload"}
    for one in now:
        was = known.get(one.name, one)
        if (data := _data(one)) != _data(was):
            begins = data["status"] == "loading" != status_value(was)
            yield {"model": one.name, "event": "model_status" if begins else "status_change", "data": data}


def _data(one: ListedModel) -> Event:
    value = status_value(one)
    data: Event = {"status": value}
    if value == "loading":
        # All that a model is made of is one stage here.
        data["progress"] = {"stages": ["text_model"], "current": "text_model", "value": round(one.progress, 3)}
    elif value == "unloaded":
        data["exit_code"] = int(one.state is ModelState.FAILED)
    return data
