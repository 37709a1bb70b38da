"""The daemon: what it is composed of, and its life cycle."""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from umaserve.access.client_secrets import ClientSecrets
from umaserve.access.gate import Gate, Names
from umaserve.access.keys import KeyFile
from umaserve.core.errors import ConfigError, Fault, ModelError, RequestError
from umaserve.core.events import Metrics
from umaserve.core.exposition import exposition
from umaserve.core.metrics import ServingMetrics
from umaserve.daemon.detached import Detached
from umaserve.daemon.feedback import FeedbackLog
from umaserve.daemon.first_steps import first_steps
from umaserve.daemon.handover_file import HandoverFile
from umaserve.daemon.http.routes import DIALECTS
from umaserve.daemon.http.site import DaemonSite
from umaserve.daemon.kept_streams import KeptStreams
from umaserve.daemon.listeners import Listeners
from umaserve.daemon.model_downloads import ModelDownloads
from umaserve.daemon.periodic import start_periodic
from umaserve.daemon.relays.relay_links import DaemonLinks
from umaserve.daemon.services import Services
from umaserve.daemon.shutdown import Shutdown
from umaserve.daemon.store.store import Store
from umaserve.daemon.turn_detection import TurnDetection
from umaserve.daemon.vllm_metrics import use_of, vllm_metrics
from umaserve.daemon.voices import Voices
from umaserve.dialects.generate.routes import conversation
from umaserve.models.catalogue_watch import CatalogueWatch
from umaserve.models.engine_supervisor import NewEngine
from umaserve.models.known_models import KnownModels, file_of
from umaserve.models.registry import Models
from umaserve.net.input_budget import InputBudget
from umaserve.net.loop import Loop
from umaserve.remote.voice import RemoteVoice
from umaserve.scheduler.observer import observe_end
from umaserve.sessions import content_filter
from umaserve.sessions.admission import Admission
from umaserve.sessions.content_filter import ContentFilter
from umaserve.sessions.engine_api import EngineLost
from umaserve.sessions.rates import Rates
from umaserve.sessions.session import Session
from umaserve.settings.models import Catalogue
from umaserve.settings.reread import reread
from umaserve.settings.tool_servers import ToolServer
from umaserve.stages.recordings import Recordings
from umaserve.system import systemd
from umaserve.system.descriptors import raise_descriptor_limit
from umaserve.system.memory import available_bytes, resident_bytes
from umaserve.system.missing import log_missing
from umaserve.system.signals import Signals
from umaserve.system.threads import SWITCH_S, ThreadWatch
from umaserve.tool_servers.servers import ToolServers

if TYPE_CHECKING:
    from umaserve.daemon.batches.batches import Batches
    from umaserve.daemon.traces import Traces

log = logging.getLogger(__name__)


class State(enum.Enum):
    """State of the daemon: what it is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Server:
    """One daemon. ``run`` blocks until it ends and returns the exit status."""

    def __init__(
        self,
        catalogue: Catalogue,
        new_engine: NewEngine,
        voice: RemoteVoice | None = None,
        read_catalogue: Callable[[], Catalogue] | None = None,
        *,
        tool_servers: Sequence[ToolServer] = (),
        http_is_optional: bool = False,
        program: str = "",
    ) -> None:
        """``voice``: what the default model's engine speaks with. ``read_catalogue``: reads it again; raises
        ``ConfigError``; ``None``: it stays as it is. ``http_is_optional``: as of ``Listeners``. ``program``: umaserve
        as a person types it, who is told what to type next; empty: nobody is."""
        self._program = program
        self._config = config = catalogue.default.config.sized(catalogue.longest_context)
        self._status = 0
        self._loop = loop = Loop()
        self._started_at = loop.now()
        self._signals = Signals(loop, lambda: self._entrances.remove_files(), self._reread_files)
        rates = Rates(config.rate_requests, config.rate_tokens)
        self._admission = Admission(rates, config.max_queue, config.memory_reserve, available_bytes)
        self._serving_metrics = ServingMetrics((config.protocol, *(dialect.name for dialect in DIALECTS)))
        self._traces = _traces(config.otel_endpoint, loop.now) if config.otel_endpoint else None
        self._content_filter = content_filter.load(config.content_filter) if config.content_filter else None
        self._gate = Gate(
            Names(config.http, config.allow_host, config.allow_origin, config.cors_origin),
            KeyFile(config.api_keys, loop.now) if config.api_keys else None,
        )
        self._models = Models(
            loop,
            catalogue,
            self._admission,
            self._serving_metrics,
            self._content_filter,
            new_engine,
            KnownModels(file_of(os.environ)),
            self._wanted,
            self._observe_end,
        )
        self._voices = Voices(config, voice, loop.wake, self._models.threads.compute)
        self._services = self._new_services(tool_servers)
        self._left_file = HandoverFile(config.resume_file, config.resume_bytes) if config.resume_file else None
        self._links = DaemonLinks(loop, config, self._services)
        self._entrances = Listeners(
            self._services, DaemonSite(self._services, self._gate), http_is_optional=http_is_optional
        )
        self._ending = Shutdown(self._services, self._links, self._entrances)
        self._catalogue_watch = CatalogueWatch(
            self._models, config.models_dir, read_catalogue or (lambda: catalogue), self._links.say_models
        )
        services = self._services
        self._batches = _batches(services, self._gate)
        lent = (
            *services.speech.threads,
            *services.turns.threads,
            *services.recordings.threads,
            *services.store.threads,
            *self._links.threads,
        )
        self._watch = ThreadWatch((*self._models.threads.all, *lent))

    def _new_services(self, tool_servers: Sequence[ToolServer]) -> Services:
        config, loop = self._config, self._loop
        feedback = FeedbackLog(config.feedback_log) if config.feedback_log else None
        return Services(
            config=config,
            loop=loop,
            detached=Detached(
                loop, self._models, config.resume_window, config.resume_bytes, leaves=bool(config.resume_file)
            ),
            streams=KeptStreams(loop, config.resume_window, config.resume_bytes),
            models=self._models,
            downloads=ModelDownloads(
                loop, config, self._models, lambda then: self._catalogue_watch.reread(then), self._is_leaving
            ),
            tool_servers=ToolServers(loop, tool_servers),
            metrics=self._metrics,
            started_at=int(time.time()),
            prometheus=self._prometheus,
            feedback=feedback,
            speech=self._voices.speech,
            turns=TurnDetection.installed(loop.wake),
            recordings=Recordings(config.recordings, config.recordings_bytes, config.recordings_age * 86400, loop.wake),
            client_secrets=ClientSecrets(loop.now),
            store=Store(config, loop.now, loop.wake),
            ref_audio=self._voices.ref_audio,
            content_filter=self._content_filter,
            # Two of the largest messages: one comes while another is prepared.
            input_budget=InputBudget(loop, 2 * config.max_chat_bytes, config.max_frame_bytes),
            stuck=self._stuck,
            leaving=self._is_leaving,
            traced=None if self._traces is None else self._traces.answered,
        )

    # -- life ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        raise_descriptor_limit(self._config.max_sessions, "max_sessions")
        log_missing()
        sys.setswitchinterval(SWITCH_S)
        self._signals.handle()
        self._entrances.open()
        self._services.turns.tell()
        systemd.feed_watchdog(self._loop.call_later, self._stuck)
        start_periodic(
            self._loop,
            self._models,
            self._catalogue_watch,
            self._admission,
            self._services.recordings,
            self._services.store,
            self._stuck,
            self._config.request_timeout,
        )
        self._services.tool_servers.start()
        self._take_over()
        self._models.default.load(self._on_loaded)
        try:
            self._loop.run(self._turn)
        finally:
            self._entrances.close()
        return self._shut_down()

    @property
    def _state(self) -> State:
        if self._ending.draining:
            return State.DRAINING
        return State.LOADING if self._models.default.info is None else State.READY

    def _take_over(self) -> None:
        """Keep what the daemon before this one left."""
        if self._left_file is not None:
            for left in self._left_file.take():
                self._services.detached.take_over(left, conversation(self._services.facts()))

    def _is_leaving(self) -> bool:
        return self._signals.count > 0

    def _wanted(self) -> bool:
        """Whether engines are to be loaded."""
        return not self._ending.draining

    def _on_loaded(self, error: BaseException | None) -> None:
        if self._ending.draining:
            return
        if error is not None:
            self._fail_loading(error)
            return
        if self._ending.leaving:
            self._ending.drain()
            return
        systemd.notify(f"READY=1\nSTATUS=serving {self._models.default.name}")
        self._greet()
        self._models.schedule_replan()
        self._links.start()
        if self._batches is not None:
            self._batches.start()

    def _greet(self) -> None:
        if self._program and log.isEnabledFor(logging.INFO):
            # A terminal that was closed needs no lines.
            with contextlib.suppress(OSError):
                sys.stderr.write(first_steps(self._program, self._config, self._entrances.places, os.environ))
                sys.stderr.flush()

    def _fail_loading(self, error: BaseException) -> None:
        if isinstance(error, ModelError | EngineLost):
            log.error("%s", error)
        else:
            log.error("the model could not be loaded: see the server's log", exc_info=error)
        self._status = 1
        self._services.detached.leave_all()
        self._models.default.fail_all(
            RequestError(Fault.MODEL_NOT_LOADED, "request", "the model could not be loaded: see the server's log")
        )
        self._ending.stop_after_flush()

    def _stuck(self) -> Mapping[str, float]:
        """Stuck threads, as `ThreadWatch.stuck` tells them; none during loading, whose time is up to the model and the
        disk."""
        return {} if self._state is State.LOADING else self._watch.stuck()

    # -- one turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """One turn of the loop, phase by phase. A tick computes meanwhile on the engine's threads.

        Finished ticks are collected before any client is served, and the next ones submitted before tokens are written:
        no engine waits for the loop longer than it must. Results of ticks that ran ahead come with the other sockets:
        the tick behind runs already.
        """
        ready = self._loop.poll()
        if self._loop.woken:
            self._collect()
        self._loop.serve(ready)  # Accept, read, parse, admit; write to clients that are slow.
        self._loop.run_due()
        self._begin_shutdown()
        for model in self._models:
            model.run_tick()  # Plan and submit the next tick, deliver the tokens of the last one.
        self._ending.look()
        self._loop.flush()

    def _collect(self) -> None:
        """Run the callbacks of finished jobs: of engines, links to relays, the voice, and what is written to disk."""
        self._models.collect()
        self._links.collect()
        self._services.speech.collect()
        self._services.recordings.collect()
        for thread in self._services.store.threads:
            thread.collect()
        if self._services.turns.pending:
            self._services.turns.collect()

    def _begin_shutdown(self) -> None:
        if self._signals.count and not self._ending.leaving:
            if self._batches is not None:
                self._batches.stop()
            self._ending.leave()

    # -- services ------------------------------------------------------------------------------------------------

    def _observe_end(self, session: Session, end: str) -> None:
        observe_end(self._serving_metrics, session, end, self._loop.now())
        if self._traces is not None:
            self._traces.ended(session, end)

    def _metrics(self) -> Metrics:
        values: dict[str, int | float | str] = {
            "state": self._state.value,
            "uptime_s": round(self._loop.now() - self._started_at, 3),
            "connections": len(self._entrances.clients),
            "sessions_total": self._models.totals.sessions,
            "rejected_total": self._models.totals.rejected,
            **self._models.snapshot(),
            **self._services.speech.snapshot(),
            **({} if self._batches is None else self._batches.snapshot()),
            **self._services.downloads.snapshot(),
            **self._services.tool_servers.snapshot(),
            "detached_generations": len(self._services.detached),
            "large_input_bytes": self._services.input_budget.drawn,
            "stuck_threads": len(self._stuck()),
            "rss_bytes": resident_bytes(self._models.children),
            "rx_bytes_total": self._entrances.bytes_received,
            "tx_bytes_total": self._entrances.bytes_sent,
        }
        aliases = {one.name: one.aliases for one in self._models.listed() if one.aliases}
        return Metrics(values, self._models.snapshot_of_each(), aliases)

    def _prometheus(self) -> bytes:
        metrics = self._metrics()
        registry = self._serving_metrics.registry
        page = exposition(registry, metrics.values, metrics.models)
        if self._config.vllm_metrics:
            page += vllm_metrics(registry, metrics.models, {host.name: use_of(host) for host in self._models})
        return page

    def _reread_files(self) -> None:
        """SIGHUP: reread the files that can change while the daemon runs. An unusable one changes nothing."""
        log.info("reloading API keys, content filter, certificates, secrets and the list of models")
        self._catalogue_watch.reread()
        self._gate.reread_keys()
        self._links.reread_files()
        self._entrances.reread_certificate()
        if self._content_filter is not None:
            # Many patterns take longer than the streams should wait.
            load = functools.partial(content_filter.load, self._config.content_filter)
            self._models.threads.preparing.submit(lambda: reread(load, None), self._on_content_filter)

    def _on_content_filter(self, result: ContentFilter | BaseException | None) -> None:
        if isinstance(result, BaseException):
            log.error("the content filter could not be reloaded", exc_info=result)
        elif result is not None and self._content_filter is not None:
            self._content_filter.take_patterns(result)
            log.info("content filter reloaded")

    # -- the end -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Drain and end, as on the first SIGTERM; safe from any thread."""
        self._signals.stop()

    def _shut_down(self) -> int:
        if self._left_file is not None and self._services.detached.left:
            self._left_file.write(self._services.detached.left)
        self._models.keep_costs()
        self._services.downloads.close()
        self._services.tool_servers.close()
        if not self._ending.join():
            log.warning(
                "a call into llama.cpp, the voice, a decoder or the disk does not return: exiting without waiting for"
                " it"
            )
            logging.shutdown()
            os._exit(self._status)
        self._models.close()
        self._links.stop()
        if self._traces is not None:
            self._traces.stop()
        self._signals.restore()
        self._loop.close()
        log.info("stopped")
        return self._status


def _batches(services: Services, gate: Gate) -> Batches | None:
    if services.store.files is None:
        return None
    # Imported only where it is wanted.
    from umaserve.daemon.batches.batches import Batches

    return Batches(services, services.store.files, gate.renewed)


def _traces(endpoint: str, clock: Callable[[], float]) -> Traces:
    # Imported only where it is wanted: it may not be there, and takes time.
    try:
        from umaserve.daemon.traces import exported
    except ImportError as error:
        problem = f"otel_endpoint is set, and OpenTelemetry is not installed ({error})"
        raise ConfigError(f"{problem}: pip install 'umaserve[otel]', or remove the setting") from None
    return exported(endpoint, clock)
