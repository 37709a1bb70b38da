"""A daemon that counts its work while it streams. All of it is real but the engine behind its sockets.

``counted_daemon.py FOLDER STREAMS CLIENT`` prints what one tick takes, as JSON: ``Work``. ``CLIENT``: ``uds`` or
``sse``. A tick ends when this program says so, and the loop then turns once; its clock stands still meanwhile, so that
nothing else is due.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

from clock import Clock
from frames import uds_frame
from remote_engine import serving
from standin import StandInEngine
from work_counter import CallCounter, Calls, TappedSocket, frame_sizes, mean

from umaserve.daemon import server
from umaserve.net.loop import Loop
from umaserve.remote.channel import Channel
from umaserve.remote.client import RemoteEngine
from umaserve.remote.process import THREADS, End
from umaserve.remote.run_ahead import Granted, RunAhead
from umaserve.sessions.engine_api import Allowance, Outcome, Tick, TickResult
from umaserve.settings.addresses import parse_address
from umaserve.settings.daemon import Config
from umaserve.settings.models import Catalogue, ModelSpec

TICKS = 256
"""What is due now and then takes part with its share: metrics are folded after 256 values, the costs of a tick solved
after 16."""
TICK_S = 0.001
STREAMS = 16
CELLS = 512
"""For each stream."""
PROMPT = "A prompt of some words"
FIRST = 500
"""The first token of an answer: so all have three digits."""


class Work(NamedTuple):
    """What one tick takes."""

    loop: Calls
    """Of the loop's thread, from a tick's end to the next one, with the tokens' delivery."""
    calls: float
    """Frames to the engine."""
    grants: float
    """Bytes that let it run a tick ahead."""
    answers: float
    """Frames from the engine."""
    answer_bytes: float
    client_bytes: float
    """What each client gets."""


class CountingEngine(StandInEngine):
    """Says numbers, so that no draft tokens come of repetition, with the capacity of the default model on a CPU."""

    def __init__(self) -> None:
        super().__init__(
            slots=STREAMS,
            cells=STREAMS * CELLS,
            batch_tokens=512,
            sequence_tokens=CELLS,
            sequences=3 * STREAMS,
            cached_cells=1,
            host_bytes=1 << 20,
            parts=STREAMS,
        )
        self.capacity = replace(self.capacity, prompts_apart=True)
        self.pieces = [b" %d" % token for token in range(FIRST + CELLS)]
        self.gated = False
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        """Of each tick, while they are ``gated``."""

    def run(self, tick: Tick) -> TickResult:
        if self.gated:
            self.begun.release()
            self.may_end.acquire()
        tokens = [() if run.sampler is None else (FIRST + run.start + len(run.tokens),) for run in tick.runs]
        return TickResult(Outcome.DONE, tokens, TICK_S * bool(tick.runs))


class Handle:
    """Implements ``models.engine_supervisor.EngineHandle``. The engine is in this process, behind its sockets."""

    life = None
    pid = os.getpid()

    def __init__(self, engine: CountingEngine) -> None:
        self._engine = engine
        ours, theirs = socket.socketpair()
        self.granting = TappedSocket(theirs)
        """The engine's end, which gets the grants of ticks."""
        self.run_ahead = RunAhead(ours, self.granting)
        self.ends: list[TappedSocket] = []
        """The engine's ends of the others, which get calls."""

    def load(self, config: Config, allowance: Allowance, progress: Callable[[float], bool]) -> RemoteEngine:
        served, channels = serving(self._engine, granted=Granted(self.granting)), []
        for _ in range(THREADS):
            ours, theirs = socket.socketpair()
            channels.append(Channel(ours))
            self.ends.append(TappedSocket(theirs))
            threading.Thread(target=served.serve, args=(Channel(self.ends[-1]),), daemon=True).start()
        return RemoteEngine(channels, config, None, allowance, progress, run_ahead=self.run_ahead)

    def kill(self) -> None:
        raise AssertionError("it returns from all calls")

    def end(self) -> End:
        raise AssertionError("it ends with this process")

    def close(self) -> None:
        """It ends with this process."""


class Client:
    """One request, and its bytes as they come."""

    event = b'"event":"token"'

    def __init__(self, server: server.Server, config: Config, number: int) -> None:
        self._socket = self._connected(server, config)
        # More tokens than are counted.
        self._socket.sendall(self._request({"prompt": f"{number:02} {PROMPT}", "max_tokens": CELLS}))
        self._socket.setblocking(False)
        self.bytes = self.tokens = 0

    def _connected(self, _server: server.Server, config: Config) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(config.socket)
        return connection

    def _request(self, fields: dict[str, object]) -> bytes:
        return uds_frame({"id": "r", **fields})

    def read(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        self.bytes += len(data)
        self.tokens += data.count(self.event)


class SseClient(Client):
    """One request over HTTP, whose answer comes as server-sent events."""

    event = b"data: {"

    def _connected(self, server: server.Server, _config: Config) -> socket.socket:
        (address,) = [place.at for place in server._entrances.places if place.protocol == "http"]
        return socket.create_connection(parse_address(address))

    def _request(self, fields: dict[str, object]) -> bytes:
        body = json.dumps({"stream": True, **fields}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"Content-Type: application/json\r\n\r\n" + body


CLIENTS = {"uds": Client, "sse": SseClient}


class CountedDaemon:
    """Turns the daemon's loop once for each tick that it lets end."""

    def __init__(self, folder: str, streams: int, client: type[Client]) -> None:
        self._engine = CountingEngine()
        self._handle = Handle(self._engine)
        self._clock = Clock()
        self._loop_calls = CallCounter(server.Server._turn.__code__)
        self._streams = streams
        config = Config(socket=os.path.join(folder, "uma.sock"), http="127.0.0.1:0", memory_reserve=0, threads=1)
        # The loop's threads and timers are made with its clock.
        with mock.patch.object(server, "Loop", functools.partial(Loop, self._clock)):
            self._server = server.Server(Catalogue(ModelSpec("stand-in", config)), lambda _spec: self._handle)
        self._open = functools.partial(client, self._server, config)

    def run(self) -> None:
        """As ``Server.run``, but for the turns of the loop."""
        with mock.patch.object(self._server._loop, "run", self._turns):
            self._server.run()

    def _turn(self) -> None:
        self._clock.now += TICK_S
        self._server._turn()

    def _turns(self, _turn: Callable[[], None]) -> None:
        while self._server._models.default.loaded is None:
            self._turn()
        clients = [self._open(number) for number in range(self._streams)]
        while min(client.tokens for client in clients) < 5:
            self._turn()
            for client in clients:
                client.read()
        self._await_gate(clients)
        print(json.dumps(self._counted(clients)))
        sys.stdout.flush()
        os._exit(0)

    def _await_gate(self, clients: list[Client]) -> None:
        """Until a tick waits for this program, and all tokens before it are with their clients."""
        self._engine.gated = True
        # A tick may have ended before the gate closed: the next one begins only when the loop has seen its end.
        while not self._engine.begun.acquire(timeout=0.01):
            self._server._loop.call_soon(lambda: None)
            self._turn()
        for _ in range(3):
            self._server._loop.call_soon(lambda: None)
            self._turn()
        for client in clients:
            client.read()

    def _counted(self, clients: list[Client]) -> Work:
        ends = [self._handle.granting, *self._handle.ends]
        for client in clients:
            client.bytes = client.tokens = 0
        for end in ends:
            end.sent.clear()
            end.received.clear()
        for tick in range(1, TICKS + 1):
            self._engine.may_end.release()
            while min(client.tokens for client in clients) < tick:
                sys.setprofile(self._loop_calls)
                self._turn()
                sys.setprofile(None)
                for client in clients:
                    client.read()
            self._engine.begun.acquire()
        assert {client.tokens for client in clients} == {TICKS}, "one token a tick"
        return self._work(clients)

    def _work(self, clients: list[Client]) -> Work:
        calls = frame_sizes(end.received for end in self._handle.ends)
        answers = frame_sizes([self._handle.granting.sent])
        sys.setprofile(self._loop_calls)
        self._turn()
        sys.setprofile(None)
        _, *turns = self._loop_calls.rounds
        assert len(turns) >= TICKS
        return Work(
            mean(turns),
            len(calls) / TICKS,
            len(self._handle.granting.received) / TICKS,
            len(answers) / TICKS,
            sum(answers) / TICKS,
            sum(client.bytes for client in clients) / TICKS / len(clients),
        )


if __name__ == "__main__":
    folder, streams, client = sys.argv[1:]
    CountedDaemon(folder, int(streams), CLIENTS[client]).run()
