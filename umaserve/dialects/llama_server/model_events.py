"""llama-server's ``/models/sse``: events of how the models differ from what a client was told before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from umaserve.core.events import ListedModel, ModelDownload, ModelState
from umaserve.dialects.llama_server.models import progress
from umaserve.dialects.openai.models import status_value

Event = dict[str, Any]


class Known(NamedTuple):
    """What a client knows: the models, and the downloads that have not ended, or ended last."""

    models: Sequence[ListedModel]
    downloads: Sequence[ModelDownload]


def changes(before: Known, now: Known) -> Iterator[Event]:
    """Events that tell a client how all is ``now``, who knows how it was ``before``."""
    yield from _of_downloads(before.downloads, now.downloads)
    yield from _of_models(before.models, now.models)


def _of_downloads(before: Sequence[ModelDownload], now: Sequence[ModelDownload]) -> Iterator[Event]:
    known = {one.name: one for one in before if not one.ended}
    n_ended = max((one.ended for one in before), default=0)
    deleted = {one.ended for one in before if one.deleted}
    for one in now:
        if one.ended > n_ended and one.problem:
            yield {"model": one.name, "event": "download_failed", "data": {"error": {"message": one.problem}}}
        elif one.ended > n_ended:
            yield {"model": one.name, "event": "download_finished", "data": {"id": one.model}}
        elif not one.ended and one.name not in known:
            yield {"model": one.name, "event": "model_status", "data": {"status": "downloading"}}
        elif not one.ended and one.files != known[one.name].files:
            yield {"model": one.name, "event": "download_progress", "data": {"progress": progress(one)}}
        if one.deleted and one.ended not in deleted:
            yield {"model": one.name, "event": "model_remove"}


def _of_models(before: Sequence[ListedModel], now: Sequence[ListedModel]) -> Iterator[Event]:
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
