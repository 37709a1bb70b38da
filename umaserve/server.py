"""The daemon: composition of listeners, connections, sessions, scheduler and engine, and the order of its life."""

from __future__ import annotations

import enum
import functools
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from umaserve.config import Config
from umaserve.connection import Connection
from umaserve.engine.worker import WorkerThread
from umaserve.errors import Fault, ModelError, RequestError
from umaserve.messages import Metrics
from umaserve.metrics import ServingMetrics, resident_bytes
from umaserve.net import systemd
from umaserve.net.channel import Channel
from umaserve.net.listeners import Listener, SocketFile, peer_of
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.progress import ProgressBar
from umaserve.protocol.framing import FrameCodec, LineCodec
from umaserve.protocol.uds import JsonDialect, Limits, LineDialect
from umaserve.serving.scheduler import Scheduler, Targets
from umaserve.serving.sessions import SessionManager
from umaserve.serving.ticks import Engine

log = logging.getLogger(__name__)

PROGRESS_S = 0.1
FAREWELL_S = 1.0
"""How long the last words may take to be read when all else is done."""
JOIN_S = 5.0


class LoadedEngine(Engine, Protocol):
    """An engine that can be closed."""

    @property
    def name(self) -> str: ...

    def close(self) -> None: ...


Load = Callable[[Config, Callable[[float], bool]], LoadedEngine]
"""Loads the model on the compute thread; the callback takes the progress and says whether to go on."""


class State(enum.Enum):
    """What the daemon is doing."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Server:
    """One daemon. ``run`` blocks until it ends and returns the exit status."""

    def __init__(self, config: Config, load: Load) -> None:
        self._config = config
        self._load = load
        self._loop = Loop()
        self._compute = WorkerThread("compute", self._loop.wake)
        self._preparing = WorkerThread("preparing", self._loop.wake)
        self._sessions = SessionManager()
        self._scheduler: Scheduler | None = None
        self._engine: LoadedEngine | None = None
        self._listeners: list[Listener] = []
        self._socket_file: SocketFile | None = None
        self._connections: set[Connection] = set()
        self._past_bytes = [0, 0]
        """Bytes received and sent by connections that have ended."""
        self._state = State.LOADING
        self._progress = 0.0
        self._bar = ProgressBar("loading the model", sys.stderr)
        self._started_at = self._loop.now()
        self._stop_signals = 0
        self._ending: Timer | None = None
        self._status = 0

    # -- life ----------------------------------------------------------------------------------------------------

    def run(self) -> int:
        _raise_descriptor_limit()
        self._listen()
        self._handle_signals()
        self._watch_dog()
        self._loop.after_poll = self._collect
        self._loop.before_sleep = self._end_turn
        self._show_progress()
        self._compute.submit(lambda: self._load(self._config, self._on_progress), self._on_loaded)
        try:
            self._loop.run()
        finally:
            self._close_listeners()
        return self._shut_down()

    def _listen(self) -> None:
        passed = systemd.listen_fds()
        if not passed:
            self._socket_file = SocketFile(self._config.socket, self._config.socket_mode)
            passed = [("", self._socket_file.socket)]
        for name, sock in passed:
            protocol = name if name in ("json", "newline") else self._config.protocol
            self._listeners.append(Listener(self._loop, sock, functools.partial(self._accept, protocol)))
            log.info("listening", extra={"fields": {"socket": sock.getsockname(), "protocol": protocol}})

    def _on_progress(self, fraction: float) -> bool:
        self._progress = fraction
        return self._stop_signals == 0

    def _show_progress(self) -> None:
        if self._state is State.LOADING:
            self._bar.show(self._progress)
            self._loop.call_later(PROGRESS_S, self._show_progress)

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
            Targets(self._config.slo_ttft_ms / 1000, self._config.slo_tbt_ms / 1000),
            self._loop.now,
        )
        self._state = State.READY
        self._progress = 1.0
        systemd.notify(f"READY=1\nSTATUS=serving {result.name}")
        seconds = round(self._loop.now() - self._started_at, 2)
        log.info("ready", extra={"fields": {"model": result.name, "load_s": seconds}})

    def _fail_loading(self, error: BaseException) -> None:
        if isinstance(error, ModelError):
            log.error("%s", error)
        else:
            log.error("the model could not be loaded", exc_info=error)
        self._status = 1
        self._fail_all("request: the model could not be loaded")
        self._begin_farewell()

    # -- one turn ------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        self._compute.collect()
        self._preparing.collect()

    def _end_turn(self) -> None:
        if self._stop_signals and self._state is not State.DRAINING:
            self._drain()
        if self._scheduler is not None:
            self._scheduler.pump()
            self._scheduler.deliver()
        else:
            for _ in self._sessions.deliver():
                continue
        if self._state is State.DRAINING and (self._scheduler is None or self._scheduler.idle):
            self._begin_farewell()
        if self._ending is not None:
            self._stop_when_said()

    # -- connections ---------------------------------------------------------------------------------------------

    def _accept(self, protocol: str, sock: socket.socket) -> None:
        config = self._config
        limits = Limits(config.max_prompt_bytes, config.max_tokens)
        codec: FrameCodec | LineCodec
        dialect: JsonDialect | LineDialect
        if protocol == "json":
            codec, dialect = FrameCodec(config.max_frame_bytes), JsonDialect(limits, config.keep_alive)
        else:
            codec, dialect = LineCodec(config.max_frame_bytes), LineDialect(limits)
        if len(self._connections) >= config.max_sessions:
            self._refuse(sock, codec, dialect)
            return
        peer = peer_of(sock)
        log.debug("accepted", extra={"fields": {"pid": peer.pid, "uid": peer.uid}})
        channel = Channel(self._loop, sock, high_water=config.tx_high_water, stall_timeout=config.idle_timeout)
        self._connections.add(
            Connection(
                self._loop,
                channel,
                codec,
                dialect,
                self._sessions,
                peer=f"uid:{peer.uid}",
                idle_timeout=config.idle_timeout,
                metrics=self._metrics,
                lost=self._forget,
            )
        )

    def _refuse(self, sock: socket.socket, codec: FrameCodec | LineCodec, dialect: JsonDialect | LineDialect) -> None:
        self._sessions.totals.rejected += 1
        error = RequestError(
            Fault.TOO_MANY_SESSIONS,
            f"connection: {self._config.max_sessions} are open, which is the most; try again later",
        )
        with sock:
            sock.setblocking(False)
            try:
                sock.send(codec.send(dialect.fail(error).payload))
            except OSError as failed:
                log.debug("the refusal was not taken: %s", failed)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._past_bytes[0] += connection.channel.bytes_received
        self._past_bytes[1] += connection.channel.bytes_sent

    # -- metrics -------------------------------------------------------------------------------------------------

    def _metrics(self) -> Metrics:
        received, sent = self._past_bytes
        values: dict[str, int | float | str] = {
            "state": self._state.value,
            "load_progress": round(self._progress, 3),
            "model": "" if self._engine is None else self._engine.name,
            "uptime_s": round(self._loop.now() - self._started_at, 3),
            "connections": len(self._connections),
            "sessions_total": self._sessions.totals.sessions,
            "rejected_total": self._sessions.totals.rejected,
            **(_before_loading(self._sessions) if self._scheduler is None else self._scheduler.snapshot()),
            "rss_bytes": resident_bytes(),
            "rx_bytes_total": received + sum(c.channel.bytes_received for c in self._connections),
            "tx_bytes_total": sent + sum(c.channel.bytes_sent for c in self._connections),
        }
        return Metrics(values)

    # -- the end -------------------------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Signals are the main thread's; in another one the daemon is somebody's library.
        signal.set_wakeup_fd(self._loop.wake_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stop_signals += 1
        if self._stop_signals > 1:
            if self._socket_file is not None:
                self._socket_file.remove()
            os._exit(128 + number)

    def stop(self) -> None:
        """Drain and end, as on the first SIGTERM; safe from any thread."""
        self._stop_signals += 1
        self._loop.wake()

    def _drain(self) -> None:
        self._state = State.DRAINING
        self._sessions.draining = True
        systemd.notify("STOPPING=1\nSTATUS=draining")
        running = sum(1 for _ in self._sessions.running())
        log.info("draining", extra={"fields": {"running": running, "timeout_s": self._config.drain_timeout}})
        if self._scheduler is None:
            self._fail_all("request: the server is shutting down; try again later")
            return
        self._scheduler.refuse_waiting()
        self._loop.call_later(self._config.drain_timeout, self._end_drain)

    def _end_drain(self) -> None:
        """The time is over, also for a decode that does not return."""
        if self._scheduler is not None:
            self._scheduler.fail_running()
        self._begin_farewell()

    def _fail_all(self, message: str) -> None:
        for session in list(self._sessions.running()):
            self._sessions.fail(session, RequestError(Fault.SHUTTING_DOWN, message))

    def _begin_farewell(self) -> None:
        if self._ending is None:
            self._ending = self._loop.call_later(FAREWELL_S, self._loop.stop)

    def _stop_when_said(self) -> None:
        for connection in self._connections:
            connection.channel.close()
        if not any(connection.channel.queued for connection in self._connections):
            self._loop.call_soon(self._loop.stop)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        if self._socket_file is not None:
            self._socket_file.remove()

    def _shut_down(self) -> int:
        for connection in list(self._connections):
            connection.channel.abort()
        self._loop.after_poll = self._loop.before_sleep = lambda: None
        if self._compute.stop(JOIN_S) and self._preparing.stop(JOIN_S):
            self._compute.collect()
            if self._engine is not None:
                self._engine.close()
        else:
            log.warning("a call into llama.cpp does not return: ending without it")
            logging.shutdown()
            os._exit(self._status)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
        self._loop.close()
        log.info("stopped")
        return self._status

    def _watch_dog(self) -> None:
        interval = systemd.watchdog_interval()
        if interval is not None:
            systemd.notify("WATCHDOG=1")
            self._loop.call_later(interval, self._watch_dog)


def _before_loading(sessions: SessionManager) -> Mapping[str, int | float | str]:
    """The scheduler's metrics while there is none yet, so that the names are always the same."""
    return {
        "active_sessions": 0,
        "waiting_sessions": sum(1 for _ in sessions.running()),
        "tx_stalled_sessions": 0,
        **ServingMetrics().snapshot(),
        "kv_cells_used": 0,
        "kv_cells_total": 0,
    }


def _raise_descriptor_limit() -> None:
    """Take all the descriptors that the system allows: the usual soft limit is for programs that use select(2)."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
