"""What connections of all dialects need of the daemon."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from umaserve.access.client_secrets import ClientSecrets
from umaserve.core.commands import Cancel, Steering
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Metrics, ModelInfo
from umaserve.core.requests import Generate, Infill, MixedText, Prompt, TokenIds
from umaserve.daemon.detached import Detached
from umaserve.daemon.feedback import FeedbackLog
from umaserve.daemon.kept_streams import KeptStreams
from umaserve.daemon.model_downloads import ModelDownloads
from umaserve.daemon.store.store import Store
from umaserve.daemon.turn_detection import TurnDetection
from umaserve.dialects.facts import Facts, RunningAnswer
from umaserve.dialects.parameters import RequestLimits
from umaserve.models.registry import Models
from umaserve.net.input_budget import InputBudget
from umaserve.net.loop import Loop
from umaserve.sessions.caller import Caller
from umaserve.sessions.content_filter import ContentFilter
from umaserve.sessions.session import Session
from umaserve.settings.daemon import Config
from umaserve.stages.recordings import Recordings
from umaserve.stages.ref_audio import RefAudio
from umaserve.stages.spoken import Speech
from umaserve.tool_servers.servers import ToolServers


@dataclass(frozen=True, slots=True)
class Services:
    """One instance for all connections of a daemon."""

    config: Config
    loop: Loop
    detached: Detached
    streams: KeptStreams
    models: Models
    downloads: ModelDownloads
    tool_servers: ToolServers
    metrics: Callable[[], Metrics]
    started_at: int
    """Seconds since 1970."""
    prometheus: Callable[[], bytes]
    feedback: FeedbackLog | None
    """``None`` where feedback is not kept."""
    speech: Speech
    turns: TurnDetection
    recordings: Recordings
    client_secrets: ClientSecrets
    store: Store
    """What clients may come back for."""
    ref_audio: RefAudio | None
    content_filter: ContentFilter | None
    input_budget: InputBudget
    stuck: Callable[[], Mapping[str, float]]
    """Stuck threads by name, with the seconds since they last advanced."""
    leaving: Callable[[], bool]
    """Whether the daemon is to end: its clients had better go elsewhere."""
    traced: Callable[[str, str, Caller, float, str], None] | None = None
    """Gets what no session answers, as ``Traces.answered``; ``None``: nothing is traced."""

    def facts(self, caller: Caller | None = None) -> Facts:
        """What dialects may know of this daemon, to answer ``caller``; ``None``: one that can't come back."""
        config, voice = self.config, self.speech.voice
        tenant = "" if caller is None else caller.tenant
        if voice is not None and self.ref_audio is not None:
            voice = replace(voice, reference=self.ref_audio.audio, reference_path=self.ref_audio.path)
        return Facts(
            limits=RequestLimits(config.max_prompt_bytes, config.max_tokens or None, config.max_chat_bytes),
            model=lambda name: self.models.info(name, caller),
            models=lambda: self.models.listed(caller),
            server_tools=functools.partial(self.tool_servers.tools, caller) if self.tool_servers.any else None,
            downloads=self.downloads.listed if caller is not None and caller.operator else tuple,
            download=self.downloads.start,
            delete=self.downloads.delete,
            load=self.models.load,
            unload=lambda name: None if self.downloads.cancel(name) else self.models.unload(name),
            erase_cached=self.models.erase_cached,
            save_slot=lambda name, *asked: self.models.scheduler_of(name).save_slot(*asked),
            restore_slot=lambda name, *asked: self.models.scheduler_of(name).restore_slot(*asked),
            set_adapters=self.models.set_adapters,
            adapters=self.models.adapters,
            voice=voice,
            speech_model=self.turns.model,
            new_id=_new_id,
            now=_seconds,
            clock=time.monotonic,
            started_at=self.started_at,
            resumable=self.detached.enabled,
            recorded=bool(config.recordings),
            new_client_secret=None if caller is None else functools.partial(self.client_secrets.new, caller),
            kept=None if caller is None else self.store.kept.of(caller.tenant),
            files=None if caller is None or self.store.files is None else self.store.files.kept.of(caller.tenant),
            streams=functools.partial(self.streams.states, tenant),
            stop_stream=functools.partial(self.streams.stop, tenant),
            steer=functools.partial(_steer, self.models, caller),
            running=lambda: _running(self.models, shown=config.slots_prompts),
        )

    def loaded(self) -> ModelInfo:
        """The default model; raises ``RequestError`` until it is loaded first."""
        info = self.models.default.info
        if info is None:
            raise RequestError(Fault.MODEL_NOT_LOADED, "model", "still loading; try again later", retry_after_s=1.0)
        return info


def _steer(
    models: Models, caller: Caller | None, request_id: str, command_of: Callable[[Generate], Steering | Cancel]
) -> int:
    """Implement ``Facts.steer``. Only the tenant that has begun a request may steer it."""
    if caller is None or caller.several:
        return 0
    own = (one for one in models.running() if (one.caller.dialect, one.caller.tenant) == ("openai", caller.tenant))
    found = [one for one in own if _is_of(one.request.id, request_id)]
    for session, command in [(one, command_of(one.request)) for one in found]:
        if isinstance(command, Cancel):
            session.manager.cancel(session, command.id)
        else:
            session.manager.steer(session, command)
    return len(found)


def _is_of(answer_id: str, request_id: str) -> bool:
    """Whether an answer is that of a request, or one of its several."""
    of, _dash, number = answer_id.rpartition("-")
    return answer_id == request_id or (of == request_id and number.isdecimal())


def _running(models: Models, *, shown: bool) -> list[RunningAnswer]:
    placed = (session for session in models.running() if session.slot is not None)
    return [_answer(session, shown=shown) for session in placed]


def _answer(session: Session, *, shown: bool) -> RunningAnswer:
    request, usage = session.request, session.usage
    return RunningAnswer(
        session.id,
        session.model,
        request,
        prompt_tokens=usage.prompt_tokens,
        computed_tokens=max(0, min(session.computed, usage.prompt_tokens) - session.reused),
        reused_tokens=session.reused,
        generated_tokens=usage.completion_tokens,
        prompt=_text_of(request.prompt) if shown else None,
    )


def _text_of(prompt: Prompt) -> str:
    match prompt:
        case str():
            return prompt
        case TokenIds(ids):
            return " ".join(map(str, ids))
        case MixedText(parts):
            return "".join(map(_text_of, parts))
        case Infill():
            return prompt.prefix + prompt.beginning
        case turns:
            return "\n".join(f"{turn.role}: {turn.content}" for turn in turns)


def _new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def _seconds() -> int:
    return int(time.time())
