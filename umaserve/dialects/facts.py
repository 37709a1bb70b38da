"""Facts that a dialect may know about its daemon, to answer a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from umaserve.core.commands import Cancel, Steering
from umaserve.core.errors import ModelAwaited, RequestError
from umaserve.core.events import ListedModel, ModelDownload, ModelInfo, SlotFile, VoiceInfo
from umaserve.core.requests import Generate
from umaserve.core.server_tools import ServerTool
from umaserve.dialects.batches.kept import TenantsFiles
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.realtime.speech_model import SpeechModel
from umaserve.dialects.responses.kept import TenantsKept


@dataclass(frozen=True, slots=True)
class RunningAnswer:
    """An answer that has a slot, for pages about what runs."""

    number: int
    """Counts sessions."""
    model: str
    """The name of the model that answers."""
    request: Generate
    prompt_tokens: int
    computed_tokens: int
    """Tokens of the prompt that were computed so far."""
    reused_tokens: int
    """Tokens of the prompt that were in the cached prefix."""
    generated_tokens: int
    prompt: str | None = None
    """What the client wrote, if the operator wants it to be shown."""


class StreamState(NamedTuple):
    """State of a stream that is kept for a client to read on."""

    conversation: str
    """The name that its client gave it."""
    done: bool
    total_bytes: int
    started_at: int
    """Seconds since 1970."""
    completed_at: int
    """Likewise; 0 until it is done."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of one daemon, for one client."""

    limits: RequestLimits
    model: Callable[[str], ModelInfo | None]
    """The model that is meant by a name, the default one by an empty name; ``None``: it has not been loaded yet. Raises
    ``RequestError`` for an unknown name where the operator wants names to be strict, and for a model that the client's
    key may not use."""
    models: Callable[[], Sequence[ListedModel]]
    """The models that the daemon may serve to the client, the default one first."""
    downloads: Callable[[], Sequence[ModelDownload]]
    """Downloads that operators have asked for: those that have not ended, and the latest that have."""
    download: Callable[[str], None]
    """Has the model downloaded that the hub has by that name. Raises ``RequestError`` where that can't be."""
    delete: Callable[[str, Callable[[RequestError | None], None]], None]
    """Deletes the files of the model of that name, or what is there of its download, and calls its last argument.
    Raises ``RequestError`` where that can't be."""
    load: Callable[[str], None]
    """Has the model of that name loaded. Raises ``RequestError`` where there is none, or it can't be."""
    unload: Callable[[str], None]
    """Has the model of that name unloaded, or its download cancelled. Raises ``RequestError`` where there is none, or
    it can't be."""
    erase_cached: Callable[[str], int]
    """Drops all sequences that the model of that name has cached in memory; returns how many tokens they held. Raises
    ``RequestError`` where there is none."""
    save_slot: Callable[[str, int, str, Callable[[SlotFile | RequestError], None]], None]
    """Saves what a slot of the model of that name holds, by the slot's number, in a file of the name that follows.
    Raises ``RequestError``, or calls its last argument later."""
    restore_slot: Callable[[str, str, Callable[[SlotFile | RequestError], None]], None]
    """Lets prompts of the model of that name begin with what is in a file of the name that follows, likewise."""
    set_adapters: Callable[[str, tuple[tuple[str, float], ...]], None]
    """Sets the adapters, with their scales, of requests for the model of that name that name none. Raises
    ``RequestError`` where there is none."""
    adapters: Callable[[str], tuple[tuple[str, float], ...] | None]
    """The adapters that were set so; ``None``: all of the model's, at 1."""
    voice: VoiceInfo | None
    """The daemon's voice; ``None`` if it has none."""
    new_id: Callable[[str], str]
    """Makes a random id with the given prefix. Ids are secrets: with one, a lost connection's generation is resumed."""
    now: Callable[[], int]
    """Seconds since 1970."""
    clock: Callable[[], float]
    """Seconds that nobody sets back, for durations."""
    started_at: int
    """When the daemon started, in seconds since 1970."""
    resumable: bool
    """Whether a lost connection's generation is kept for another connection."""
    recorded: bool
    """Whether conversations are recorded, so that requests carry their payload."""
    running: Callable[[], Sequence[RunningAnswer]]
    """The answers that have a slot, the oldest first."""
    steer: Callable[[str, Callable[[Generate], Steering | Cancel]], int]
    """Steers the caller's running answers of the request with that id, of OpenAI's APIs, each by what the function
    makes of it; returns how many there are. Raises what the function raises, and then steers none."""
    streams: Callable[[Sequence[str]], Sequence[StreamState]]
    """The states of the caller's streams with these names."""
    stop_stream: Callable[[str], None]
    """Ends the caller's stream of that name, if there is one."""
    kept: TenantsKept | None
    """The responses and conversations that are kept for the caller; ``None`` where nobody could come back for one."""
    server_tools: Callable[[str, str], Sequence[ServerTool]] | None = None
    """The tools of an MCP server that the daemon calls for the caller, by its name; the other argument is the field
    that errors name. Raises ``RequestError`` where the caller has none. ``None``: the daemon calls none."""
    files: TenantsFiles | None = None
    """The caller's files; ``None`` where none are kept."""
    new_client_secret: Callable[[Mapping[str, Any], float], str] | None = None
    """Makes a short-lived key for sessions that begin with these settings, valid for so many seconds; raises
    ``RequestError`` where there are too many. ``None``: nobody could come with one."""
    speech_model: SpeechModel | None = None
    """The detector of speech, which runs on a thread of its own; ``None``: turns are found by how loud the sound is."""
    asked_model: str = ""
    """The model that a WebSocket's messages mean where they name none, or the default one."""
    kept_by_relay: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a response that tell of what the relay keeps, where that keeps it."""

    def loaded(self, name: str = "") -> ModelInfo:
        """The model that is meant by ``name``; raises ``ModelAwaited`` until it has been loaded."""
        info = self.model(name)
        if info is None:
            raise ModelAwaited(name)
        return info
