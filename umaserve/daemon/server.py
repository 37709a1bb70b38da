"""The daemon: composition of listeners, connections, sessions, scheduler and engine, and the order of its life."""

from __future__ import annotations

import enum
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from umaserve.access.gate import Gate, Names
from umaserve.access.keys import KeyFile
from umaserve.daemon.detached import Detached
from umaserve.daemon.entrances import Entrances
from umaserve.daemon.feedback import FeedbackLog
from umaserve.daemon.relay_links import DaemonLinks
from umaserve.daemon.services import Services
from umaserve.daemon.site import DaemonSite
from umaserve.errors import ConfigError, Fault, ModelError, RequestError
from umaserve.messages import Audio, Feedback, Loading, Metrics, VoiceInfo
from umaserve.metrics import ServingMetrics, exposition
from umaserve.net.input_budget import InputBudget
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.serving import content_filter
from umaserve.serving.admission import Admission
from umaserve.serving.content_filter import ContentFilter
from umaserve.serving.observer import observe_end
from umaserve.serving.planning import Targets
from umaserve.serving.questions import Questions
from umaserve.serving.rates import Rates
from umaserve.serving.scheduler import Scheduler
from umaserve.serving.sessions import Caller, Session, SessionManager
from umaserve.serving.ticks import Engine
from umaserve.settings.daemon import Config
from umaserve.settings.reread import reread
from umaserve.speech.load import load as load_voice
from umaserve.speech.reference import Reference
from umaserve.speech.voice import BadReference, Samples, Voice
from umaserve.stages import recordings, ref_audio
from umaserve.stages.recordings import Recordings
from umaserve.stages.ref_audio import RefAudio
from umaserve.stages.spoken import NICE, Speech
from umaserve.system import systemd
from umaserve.system.cores import CoreCounter
from umaserve.system.descriptors import raise_descriptor_limit
from umaserve.system.memory import MemoryPressure, available_bytes, resident_bytes
from umaserve.system.progress import ProgressBar
from umaserve.system.signals import Signals
from umaserve.system.threads import JobThread, ThreadWatch

log = logging.getLogger(__name__)

PROGRESS_S = 0.1
TELL_S = 1.0
EXPIRE_S = 1.0
FAREWELL_S = 1.0
"""How long the last words may take to be read when all else is done."""
JOIN_S = 5.0
WATCH_S = 5.0
"""How often threads are looked at, so that the log tells of one that is stuck where nobody else asks."""
MAX_TICK_S = 300.0
"""Of one decode, or what a lengthy job computes between two pauses: a long text to embed, weights on a slow disk."""
MAX_PREPARING_S = 60.0
MAX_MEDIA_S = 600.0
"""A decoder is killed after 300 s, which may begin when 120 s have gone by; then what it gave is laid out."""
SWITCH_S = 0.0005
"""After which a thread that waits for Python's lock asks for it. The loop gives it up in each system call, and each
time waits while another thread decodes media, say: with Python's 5 ms a turn took 50 to 80."""


class LoadedEngine(Engine, Protocol):
    """An engine that can be closed."""

    def close(self) -> None: ...


class ComputedVoice(Voice, Protocol):
    """A voice that llama.cpp computes, on the thread that computes all else."""

    def load(self) -> None:
        """Read its weights, on the compute thread; raises ``ModelError``."""

    def close(self) -> None: ...


Load = Callable[[Config, Callable[[float], bool]], LoadedEngine]
"""Loads the model on the compute thread; the callback takes the progress and says whether to go on."""


NewVoice = Callable[[Config, Samples | None], ComputedVoice]
"""The voice of ``config.tts_model``, which is that of the recording, if there is one; nothing of it is loaded yet."""


class State(enum.Enum):
    """What the daemon is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Server:
    """One daemon. ``run`` blocks until it ends and returns the exit status."""

    def __init__(self, config: Config, load: Load, new_voice: NewVoice | None = None) -> None:
        self._config = config
        self._load = load
        self._loop = Loop()
        self._compute = JobThread("compute", self._loop.wake, max_s=MAX_TICK_S)
        self._preparing = JobThread("preparing", self._loop.wake, max_s=MAX_PREPARING_S)
        self._preparing_media = JobThread("media", self._loop.wake, nice=NICE, max_s=MAX_MEDIA_S)
        self._admission = Admission(
            Rates(config.rate_requests, config.rate_tokens), config.max_queue, config.memory_reserve, available_bytes
        )
        self._serving_metrics = ServingMetrics()
        self._sessions = SessionManager(self._admission, self._loop.now, self._observe_end)
        self._content_filter = content_filter.load(config.content_filter) if config.content_filter else None
        self._feedback = FeedbackLog(config.feedback_log) if config.feedback_log else None
        self._gate = Gate(
            Names(config.http, config.allow_host, config.allow_origin, config.cors_origin),
            KeyFile(config.api_keys) if config.api_keys else None,
            self._loop.now,
        )
        reference = ref_audio.load(config.ref_audio) if config.ref_audio else None
        self._computed_voice: ComputedVoice | None = None
        if config.tts_model and new_voice is not None:
            self._computed_voice = new_voice(config, None if reference is None else _own_voice(reference.audio))
        speech = (
            Speech(load_voice(), self._loop.wake)
            if self._computed_voice is None
            else Speech(self._computed_voice, self._loop.wake, self._compute)
        )
        self._services = Services(
            config=config,
            loop=self._loop,
            sessions=self._sessions,
            detached=Detached(self._loop, self._sessions, config.resume_window, config.resume_bytes),
            model=lambda: None if self._scheduler is None or self._engine is None else self._engine.info,
            metrics=self._metrics,
            started_at=int(time.time()),
            prometheus=lambda: exposition(self._serving_metrics.registry, self._metrics().values),
            keep_feedback=self._keep_feedback,
            questions=lambda: self._questions,
            speech=speech,
            recordings=Recordings(
                config.recordings, config.recordings_bytes, config.recordings_age * 86400, self._loop.wake
            ),
            ref_audio=_to_clone(reference, speech.voice),
            content_filter=self._content_filter,
            # Two of the largest messages: one comes while another is prepared.
            input_budget=InputBudget(self._loop, 2 * config.max_chat_bytes, config.max_frame_bytes),
            stuck=self._stuck,
        )
        self._links = DaemonLinks(self._loop, config, self._services)
        lent = (*self._services.speech.threads, *self._services.recordings.threads, *self._links.threads)
        self._watch = ThreadWatch((self._compute, self._preparing, self._preparing_media, *lent))
        self._entrances: Entrances | None = None
        self._scheduler: Scheduler | None = None
        self._engine: LoadedEngine | None = None
        self._questions: Questions | None = None
        self._state = State.LOADING
        self._progress = 0.0
        self._bar = ProgressBar("loading the model", sys.stderr)
        self._started_at = self._loop.now()
        self._pressure = MemoryPressure(self._loop.now)
        self._memory_is_short = False
        self._signals = Signals(self._loop, self._remove_files, self._reread_files)
        self._ending: Timer | None = None
        self._status = 0

    # -- life ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        raise_descriptor_limit(self._config.max_sessions, "max_sessions")
        sys.setswitchinterval(SWITCH_S)
        self._entrances = entrances = Entrances(self._services, DaemonSite(self._services, self._gate))
        self._signals.handle()
        systemd.feed_watchdog(self._loop.call_later, self._stuck)
        self._loop.after_poll = self._collect
        self._loop.before_sleep = self._end_turn
        self._show_progress()
        self._tell_waiting()
        self._expire_requests()
        self._watch_memory()
        self._watch_threads()
        self._tidy_recordings()
        self._compute.submit(self._load_all, self._on_loaded)
        try:
            self._loop.run()
        finally:
            entrances.close()
        return self._shut_down(entrances)

    def _load_all(self) -> LoadedEngine:
        """On the compute thread."""
        if self._computed_voice is not None:
            self._computed_voice.load()
        return self._load(self._config, self._on_progress)

    def _on_progress(self, fraction: float) -> bool:
        self._progress = fraction
        return self._signals.count == 0

    def _show_progress(self) -> None:
        if self._state is State.LOADING:
            self._bar.show(self._progress)
            self._loop.call_later(PROGRESS_S, self._show_progress)

    def _tell_waiting(self) -> None:
        """Requests that wait for the model or for a place hear of it."""
        self._loop.call_later(TELL_S, self._tell_waiting)
        if self._scheduler is not None:
            self._scheduler.tell_waiting()
        elif self._state is State.LOADING:
            so_far = self._loop.now() - self._started_at
            eta = so_far / self._progress - so_far if self._progress else None
            for session in self._sessions.running():
                self._sessions.put(session, Loading(self._progress, eta))

    def _expire_requests(self) -> None:
        if self._config.request_timeout:
            self._loop.call_later(min(EXPIRE_S, self._config.request_timeout / 2), self._expire_requests)
            self._sessions.expire(self._config.request_timeout)

    def _tidy_recordings(self) -> None:
        self._loop.call_later(recordings.TIDY_S, self._tidy_recordings)
        self._services.recordings.tidy()

    def _watch_memory(self) -> None:
        """Where memory is short, the caches go first; where it still is a moment later, no request is taken."""
        self._loop.call_later(MemoryPressure.READ_S, self._watch_memory)
        was_short = self._memory_is_short
        self._memory_is_short = self._pressure.short()
        if self._memory_is_short and self._scheduler is not None:
            self._scheduler.shed_caches()
        if self._memory_is_short != was_short:
            log.warning("memory is %s", f"short: {self._pressure.reason}" if self._memory_is_short else "enough again")
        self._admission.memory_short = self._memory_is_short and was_short

    def _watch_threads(self) -> None:
        self._loop.call_later(WATCH_S, self._watch_threads)
        self._stuck()

    def _stuck(self) -> Mapping[str, float]:
        """As `ThreadWatch.stuck`. How long loading takes is up to the model and the disk."""
        return {} if self._state is State.LOADING else self._watch.stuck()

    def _on_loaded(self, result: LoadedEngine | BaseException) -> None:
        self._bar.clear()
        if self._state is State.DRAINING:
            self._engine = None if isinstance(result, BaseException) else result
            return
        if isinstance(result, BaseException):
            self._fail_loading(result)
            return
        self._engine = result
        self._scheduler = Scheduler(
            self._sessions,
            result,
            self._compute,
            self._preparing,
            self._preparing_media,
            Targets(self._config.slo_ttft_ms / 1000, self._config.slo_tbt_ms / 1000),
            self._loop.now,
            self._content_filter,
            self._admission.spend,
            self._serving_metrics,
            CoreCounter(self._loop.now),
            shared_prefixes=self._config.shared_prefix_cache,
            draft_tokens=self._config.speculation,
        )
        self._questions = Questions(result, self._compute, self._preparing, self._config.max_queue)
        # A collection of all that stays for good would hold the streams for some 14 ms now and then.
        gc.collect()
        gc.freeze()
        self._state = State.READY
        self._progress = 1.0
        systemd.notify(f"READY=1\nSTATUS=serving {result.info.name}")
        self._links.start()
        seconds = round(self._loop.now() - self._started_at, 2)
        log.info("ready", extra={"fields": {"model": result.info.name, "load_s": seconds}})

    def _fail_loading(self, error: BaseException) -> None:
        if isinstance(error, ModelError):
            log.error("%s", error)
        else:
            log.error("the model could not be loaded", exc_info=error)
        self._status = 1
        self._fail_all(Fault.MODEL_NOT_LOADED, "request: the model could not be loaded")
        self._begin_farewell()

    # -- one turn ------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        self._compute.collect()
        self._preparing.collect()
        self._preparing_media.collect()
        self._links.collect()
        self._services.speech.collect()
        self._services.recordings.collect()

    def _end_turn(self) -> None:
        if self._signals.count and self._state is not State.DRAINING:
            self._drain()
        if self._scheduler is not None:
            self._scheduler.pump()
            self._scheduler.deliver()
            if self._scheduler.eager:
                self._loop.call_soon(_nothing)
        else:
            for _ in self._sessions.deliver():
                continue
        if self._state is State.DRAINING and self._idle:
            self._begin_farewell()
        if self._ending is not None:
            self._stop_when_said()

    @property
    def _idle(self) -> bool:
        if self._scheduler is None or self._questions is None:
            return True
        serving = self._scheduler.idle and self._questions.idle and self._services.speech.idle and self._links.over
        return serving and self._services.recordings.idle

    # -- services ------------------------------------------------------------------------------------------------

    def _observe_end(self, session: Session, end: str) -> None:
        observe_end(self._serving_metrics, session, end, self._loop.now())

    def _keep_feedback(self, feedback: Feedback, caller: Caller) -> bool:
        if self._feedback is None:
            return False
        about = {"peer": caller.peer, "key": caller.key}
        try:
            self._feedback.append({**about, **feedback.values}, datetime.now(UTC))
        except OSError as error:
            log.error("feedback could not be written: %s", error)
            raise RequestError(Fault.DECODE_FAILED, "feedback: it could not be written down") from None
        return True

    def _metrics(self) -> Metrics:
        entrances = self._entrances
        values: dict[str, int | float | str] = {
            "state": self._state.value,
            "load_progress": round(self._progress, 3),
            "model": "" if self._engine is None else self._engine.info.name,
            "uptime_s": round(self._loop.now() - self._started_at, 3),
            "connections": 0 if entrances is None else len(entrances.clients),
            "sessions_total": self._sessions.totals.sessions,
            "rejected_total": self._sessions.totals.rejected,
            **(self._before_loading() if self._scheduler is None else self._scheduler.snapshot()),
            **self._services.speech.snapshot(),
            "detached_generations": len(self._services.detached),
            "large_input_bytes": self._services.input_budget.drawn,
            "stuck_threads": len(self._stuck()),
            "rss_bytes": resident_bytes(),
            "rx_bytes_total": 0 if entrances is None else entrances.bytes_received,
            "tx_bytes_total": 0 if entrances is None else entrances.bytes_sent,
        }
        return Metrics(values)

    def _before_loading(self) -> Mapping[str, int | float | str]:
        """The scheduler's metrics while there is none yet, so that the names are always the same."""
        return {
            "active_sessions": 0,
            "waiting_sessions": self._sessions.waiting,
            "tx_stalled_sessions": 0,
            **self._serving_metrics.snapshot(),
            "threads": 0,
            "threads_reason": "",
            "kv_cells_used": 0,
            "kv_cells_cached": 0,
            "kv_cells_total": 0,
            "host_cache_bytes": 0,
        }

    def _reread_files(self) -> None:
        """SIGHUP: those that can change while the daemon runs. One that can't be used changes nothing."""
        log.info("reading keys, content filter, certificates and secrets again")
        self._gate.reread_keys()
        self._links.reread_files()
        if self._entrances is not None:
            self._entrances.reread_certificate()
        if self._content_filter is not None:
            # Many patterns take longer than the streams should wait.
            path = self._config.content_filter
            self._preparing.submit(lambda: reread(lambda: content_filter.load(path), None), self._on_content_filter)

    def _on_content_filter(self, result: ContentFilter | BaseException | None) -> None:
        if isinstance(result, BaseException):
            log.error("the content filter could not be read again", exc_info=result)
        elif result is not None and self._content_filter is not None:
            self._content_filter.take_patterns(result)
            log.info("the content filter was read again")

    # -- the end -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Drain and end, as on the first SIGTERM; safe from any thread."""
        self._signals.stop()

    def _remove_files(self) -> None:
        if self._entrances is not None:
            self._entrances.remove_files()

    def _drain(self) -> None:
        self._state = State.DRAINING
        self._sessions.draining = True
        self._services.detached.drop_all()
        systemd.notify("STOPPING=1\nSTATUS=draining")
        running = sum(1 for _ in self._sessions.running())
        log.info("draining", extra={"fields": {"running": running, "timeout_s": self._config.drain_timeout}})
        if self._scheduler is None:
            self._fail_all(Fault.SHUTTING_DOWN, "request: the server is shutting down; try again later")
            return
        self._links.drain()
        self._scheduler.refuse_waiting()
        self._loop.call_later(self._config.drain_timeout, self._end_drain)

    def _end_drain(self) -> None:
        """The time is over, also for a decode that does not return."""
        self._begin_farewell()
        if self._scheduler is not None:
            self._scheduler.fail_running()
        self._services.speech.fail_all(
            RequestError(Fault.SHUTTING_DOWN, "request: the server is shutting down; try again later")
        )
        self._links.close()

    def _fail_all(self, fault: Fault, message: str) -> None:
        for session in list(self._sessions.running()):
            self._sessions.fail(session, RequestError(fault, message))

    def _begin_farewell(self) -> None:
        if self._ending is None:
            self._ending = self._loop.call_later(FAREWELL_S, self._loop.stop)

    def _stop_when_said(self) -> None:
        assert self._entrances is not None
        for client in list(self._entrances.clients):
            client.close()
        if not any(client.channel.queued for client in self._entrances.clients):
            self._loop.call_soon(self._loop.stop)

    def _shut_down(self, entrances: Entrances) -> int:
        for client in list(entrances.clients):
            client.channel.abort()
        self._loop.after_poll = self._loop.before_sleep = lambda: None
        services = self._services
        # All are told, whichever doesn't return; first the one whose work others were told is done.
        threads = (services.recordings, self._compute, self._preparing, self._preparing_media, services.speech)
        until = time.monotonic() + JOIN_S
        stopped = [thread.stop(max(0.0, until - time.monotonic())) for thread in threads]
        if all(stopped):
            self._compute.collect()
            if self._engine is not None:
                self._engine.close()
            if self._computed_voice is not None:
                self._computed_voice.close()
        else:
            log.warning("a call into llama.cpp, the voice, a decoder or the disk does not return: ending without it")
            logging.shutdown()
            os._exit(self._status)
        self._links.stop()
        self._signals.restore()
        self._loop.close()
        log.info("stopped")
        return self._status


def _to_clone(reference: RefAudio | None, voice: VoiceInfo | None) -> RefAudio | None:
    """What clients are given to clone: nothing where a request with it would be refused."""
    if reference is None or (voice is not None and voice.clones):
        return reference
    why = "no voice" if voice is None else "a voice that can't take on another one"
    log.warning("--ref-audio has no effect: this daemon has %s; --tts-model gives it one that can", why)
    return None


def _own_voice(recording: Audio) -> Samples:
    try:
        return Reference(recording.data, "ref_audio", ref_audio.SAMPLE_RATE).samples()
    except BadReference as error:
        raise ConfigError(str(error)) from error


def _nothing() -> None:
    """What makes the loop turn once more."""
