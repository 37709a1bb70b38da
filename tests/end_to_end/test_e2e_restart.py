"""A daemon whose sockets a service manager holds is restarted under load: nobody is refused, and what ran is finished,
or can be resumed."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from daemon import ANSWER_S, Wire
from generate_wire import Conversation, text_of
from service_manager import ServiceManager

REQUESTS, RESTARTS, CLIENTS = 200, 3, 8
LONG = {"max_tokens": 120, "ignore_eos": True}
SERVICE_RESTART = 1012


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    manager = ServiceManager(tmp_path, "--drain-timeout", "60", "--parallel", "4")
    yield manager
    manager.close()
    assert "Traceback" not in manager.daemon.logs, manager.daemon.logs


class Load:
    """Clients that ask again and again, each with a connection of its own for each request."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager
        self._ends: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask_often, args=[number]) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _ask_often(self, number: int) -> None:
        while not self._over.is_set():
            try:
                self._ends.append(self._ask_http() if number % 2 else self._ask_file())
            except Exception as error:
                self._ends.append(repr(error))

    def _ask_file(self) -> str:
        with Wire(self._manager.path) as wire:
            wire.send({"id": "l", "prompt": "Once", "max_tokens": 2, "ignore_eos": True})
            last = wire.receive_all()[-1]
        return last.get("reason") or json.dumps(last)

    def _ask_http(self) -> str:
        connection = HTTPConnection("127.0.0.1", self._manager.port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            body = json.dumps({"prompt": "Once", "max_tokens": 2, "ignore_eos": True})
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        return answer["choices"][0]["finish_reason"] if "choices" in answer else json.dumps(answer)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + ANSWER_S
        while len(self._ends) < count:
            assert time.monotonic() < deadline, f"{len(self._ends)} of {count} answers came"
            time.sleep(0.01)

    def end(self) -> list[str]:
        """How each request ended."""
        self._over.set()
        for thread in self._threads:
            thread.join(ANSWER_S)
        return self._ends


def test_restarts_under_load_lose_no_request(manager: ServiceManager):
    load = Load(manager)
    streams = []
    try:
        for restart in range(RESTARTS):
            load.wait_for((restart + 1) * REQUESTS // (RESTARTS + 1))
            stream = Wire(manager.path)
            stream.send({"id": "s", "prompt": "Once", "max_tokens": 40, "ignore_eos": True})
            stream.receive_until("token")
            streams.append(stream)
            manager.restart()
        load.wait_for(REQUESTS)
    finally:
        ends = load.end()
    assert set(ends) == {"length"}, sorted(ends, key=len)[-1]
    # What ran was finished by the daemon that ended.
    for stream in streams:
        assert stream.receive_until("eos", "error").get("reason") == "length"
        stream.close()
    assert manager.daemon.logs.count("INFO    draining") == RESTARTS


def test_who_waits_for_the_model_when_the_end_comes_gets_it_yet(manager: ServiceManager):
    with Wire(manager.path) as wire:
        wire.send({"id": "w", "prompt": "Once", "max_tokens": 2, "ignore_eos": True})
        while manager.daemon.metrics()["waiting_sessions"] == 0:
            time.sleep(0.01)
        assert manager.daemon.metrics()["state"] == "loading"
        manager.restart()
        assert wire.receive_until("eos", "error").get("reason") == "length"
    assert manager.daemon.ask("Once", max_tokens=2)[-1]["event"] == "eos"


def test_who_waits_for_a_slot_when_the_drain_timeout_is_over_is_answered_yet(tmp_path: Path):
    manager = ServiceManager(tmp_path, "--drain-timeout", "5", "--parallel", "1", "--no-speculation")
    try:
        manager.daemon.wait_until_ready()
        with contextlib.ExitStack() as stack:
            stream, *waiting = [stack.enter_context(Wire(manager.path)) for _ in range(4)]
            stream.send({"id": "s", "prompt": "Once", "max_tokens": 8000, "ignore_eos": True})
            stream.receive_until("token")
            for wire in waiting:
                wire.send({"id": "w", "prompt": "Once", "max_tokens": 2, "ignore_eos": True})
            manager.daemon.wait_for(lambda metrics: metrics["waiting_sessions"] == len(waiting))
            manager.restart()
            assert [wire.receive_until("eos", "error").get("reason") for wire in waiting] == ["length"] * 3
        # It can only end as it should once it is up.
        manager.daemon.wait_until_ready()
    finally:
        manager.close()


def test_streams_that_outlast_the_drain_timeout_go_on_at_the_next_daemon(tmp_path: Path):
    left = tmp_path / "left"
    manager = ServiceManager(tmp_path, "--drain-timeout", "0", "--resume-file", str(left))
    try:
        manager.daemon.wait_until_ready()
        with Conversation(manager.daemon) as client, Conversation(manager.daemon) as paused:
            paused.config(**LONG)
            paused_id = paused.until("init")[-1]["request_id"]
            paused.control("pause")
            paused.until("pause")
            client.config(**LONG)
            request_id = client.until("init")[-1]["request_id"]
            tokens = client.tokens(2)
            manager.restart()
            more, code = client.rest()
            tokens += more
            assert (code, paused.rest()[1]) == (SERVICE_RESTART, SERVICE_RESTART)
        with Conversation(manager.daemon) as client:
            # Its model is being loaded meanwhile.
            client.send("resume", request_id=request_id, position=len(tokens))
            status, *rest = client.until("completion")
            assert status["message"] == f"from token {len(tokens)} of {len(tokens)} so far"
            client.send("resume", request_id=paused_id, position=0)
            again = client.until("resume")
            client.control("resume")
            again += client.until("completion")
            client.config(**LONG)
            whole = client.until("completion")[-1]["generated_text"]
        assert text_of(tokens + rest) == rest[-1]["generated_text"] == whole == text_of(again)
        assert 0 < len(tokens) < rest[-1]["usage"]["completion_tokens"] == LONG["max_tokens"]
        assert not left.exists()
    finally:
        manager.close()
    assert "Traceback" not in manager.daemon.logs, manager.daemon.logs
