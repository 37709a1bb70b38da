"""All paths of a daemon with their routes, and what its dialects know of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from umaserve.access.client_secrets import ClientSecrets
from umaserve.core.events import ListedModel, ModelInfo, ModelState
from umaserve.daemon.http.pages import own_pages
from umaserve.daemon.http.routes import DIALECTS
from umaserve.daemon.services import Services
from umaserve.dialects.facts import Facts
from umaserve.dialects.responses.kept import AllKept
from umaserve.dialects.routes import HttpDialect, Route
from umaserve.net.loop import Loop
from umaserve.sessions.caller import Caller
from umaserve.settings.daemon import Config
from umaserve.tool_servers.servers import ToolServers

MODEL_INFO = ModelInfo(
    name="small-1",
    architecture="llama",
    quantization="Q8_0",
    parameters=134_515_008,
    size_bytes=2000,
    context_tokens=4096,
    training_tokens=8192,
    vocabulary=49152,
    embedding_length=576,
    chat_template="{{ messages }}",
    bos="<s>",
    eos="</s>",
)
"""Of no real model."""


def listed(model: ModelInfo, **changes: Any) -> ListedModel:
    """The model in a list: the default one, loaded and without aliases, but for ``changes``."""
    as_default = ListedModel(
        name=model.name,
        aliases=(),
        description="",
        default=True,
        size_bytes=model.size_bytes,
        state=ModelState.LOADED,
        progress=1.0,
        needed_bytes=0,
        last_used_at=None,
        info=model,
        context_tokens=model.context_tokens,
    )
    return replace(as_default, **changes)


class _Loading(SimpleNamespace):
    def __iter__(self) -> Iterator[SimpleNamespace]:
        return iter(())


_LOADING = _Loading(
    default=SimpleNamespace(info=None),
    info=lambda _name, _caller: None,
    load=lambda _name: None,
    unload=lambda _name: None,
    erase_cached=lambda _name: 0,
    set_adapters=lambda _name, _scales: None,
    adapters=lambda _name: None,
    listed=lambda _caller: [replace(listed(MODEL_INFO), state=ModelState.LOADING, info=None)],
)
"""What services need of ``models.registry.Models``, while the model loads."""


def dialects(**settings: Any) -> list[HttpDialect]:
    services = SimpleNamespace(config=Config(**settings).sized(0), models=_LOADING, leaving=lambda: False, stuck=dict)
    return [*DIALECTS, own_pages(cast("Services", services))]


def routes(**settings: Any) -> dict[str, Route]:
    return {path: route for dialect in dialects(**settings) for path, route in dialect.routes.items()}


def aliases() -> dict[str, str]:
    return {alias: path for dialect in dialects() for alias, path in dialect.aliases.items()}


def facts(**settings: Any) -> Facts:
    """Of a daemon whose model loads, and which has no voice."""
    about = SimpleNamespace(
        config=Config(**settings).sized(0),
        speech=SimpleNamespace(voice=None),
        turns=SimpleNamespace(model=None),
        ref_audio=None,
        models=_LOADING,
        tool_servers=ToolServers(Loop(), ()),
        downloads=SimpleNamespace(listed=tuple, start=None, delete=None, cancel=None),
        sessions=SimpleNamespace(running=lambda: iter(())),
        started_at=0,
        detached=SimpleNamespace(enabled=False),
        streams=SimpleNamespace(states=lambda _tenant, _names: [], stop=lambda _tenant, _name: None),
        client_secrets=ClientSecrets(lambda: 0.0),
        store=SimpleNamespace(kept=AllKept(lambda: 0.0), files=None),
    )
    return Services.facts(cast("Services", about), Caller("any", "ip:127.0.0.1"))
