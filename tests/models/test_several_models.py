"""Several models of one daemon, with stand-ins for their engines and for the box's memory."""

from __future__ import annotations

import functools
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from standin import StandInEngine
from world import World

from umaserve.core.commands import Pause, Resume
from umaserve.core.errors import Fault, ModelAwaited, ModelError, RequestError, TooLarge
from umaserve.core.events import Finished, FinishReason, Loading, ModelState, Output, Token
from umaserve.core.exposition import MODEL_HELP, MODEL_STATES
from umaserve.core.metrics import ServingMetrics
from umaserve.core.queries import Tokenize
from umaserve.core.requests import Generate
from umaserve.daemon.http.exchanges.text_exchange import TextExchange
from umaserve.dialects.http import ErrorReply
from umaserve.models import model_host, model_loading
from umaserve.models import registry as models_module
from umaserve.models.known_models import KnownModels
from umaserve.models.registry import Models
from umaserve.models.residency_snapshot import State
from umaserve.remote.process import End
from umaserve.scheduler.policy import policy
from umaserve.scheduler.policy.burst import GATHER_S
from umaserve.scheduler.questions import Question
from umaserve.sessions.admission import Admission
from umaserve.sessions.caller import Caller
from umaserve.sessions.cost_model import Cost
from umaserve.sessions.engine_api import Allowance, EngineLost, Prepared
from umaserve.sessions.rates import Rates
from umaserve.sessions.session import Session
from umaserve.settings.daemon import Config
from umaserve.settings.models import Catalogue, ModelSpec

GIB = 1 << 30
CALLER = Caller("uds", "uid:1000")


class ClosableEngine(StandInEngine):
    def close(self) -> None:
        """Its handle frees it."""


class StandInHandle:
    """Implements ``models.engine_supervisor.EngineHandle``, in a box with only so much memory."""

    run_ahead = None

    def __init__(self, box: Box, spec: ModelSpec) -> None:
        self.pid = next(box.pids)
        self.spec = spec
        self._box = box
        self.life, self._engines_end = socket.socketpair()
        self.cause = "SIGABRT"

    def load(self, _config: Config, allowance: Allowance, progress: Callable[[float], bool]) -> ClosableEngine:
        self._box.known.append((self.spec.name, allowance.known_bytes))
        if self.spec.name in self._box.broken:
            raise ModelError(f"{self.spec.name} is broken")
        if self._box.failures:
            raise self._box.failures.pop(0)
        progress(0.5)
        self._box.taken[self.pid] = self._box.sizes[self.spec.name]
        return ClosableEngine()

    def crash(self, cause: str) -> None:
        self.cause = cause
        self._engines_end.close()

    def kill(self) -> None:
        raise AssertionError("a stand-in never hangs")

    def end(self) -> End:
        return End(self.cause, "crashed", "")

    def close(self) -> None:
        self._box.taken.pop(self.pid, None)
        self.life.close()
        self._engines_end.close()


class Box:
    """The memory of a box, and the engines in it."""

    def __init__(self, total: int, sizes: dict[str, int]) -> None:
        self.total = total
        self.sizes = sizes
        self.pids = itertools.count(1)
        self.taken: dict[int, int] = {}
        """By the process."""
        self.handles: list[StandInHandle] = []
        self.broken: set[str] = set()
        """Names of models that can't be loaded."""
        self.known: list[tuple[str, int]] = []
        """For each load, the model, and what was known of it."""
        self.failures: list[Exception] = []
        """Of the next loads, whatever model they are of."""

    def new_engine(self, spec: ModelSpec) -> StandInHandle:
        self.handles.append(StandInHandle(self, spec))
        return self.handles[-1]

    def available(self) -> int:
        return self.total - sum(self.taken.values())

    def resident(self, pids: tuple[int, ...] = ()) -> int:
        return sum(self.taken.get(pid, 0) for pid in pids)


class Client:
    """Takes what comes to one session."""

    def __init__(self) -> None:
        self.outputs: list[Output | RequestError] = []
        self.session: Session

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.outputs if isinstance(one, Token))

    @property
    def end(self) -> FinishReason | Fault | None:
        match self.outputs[-1:]:
            case [Finished(reason=reason)]:
                return reason
            case [RequestError() as error]:
                return error.fault
        return None


class ModelsWorld(World):
    """The first of ``sizes`` is the default model."""

    def __init__(
        self, box: Box, *, strict: bool = False, known: KnownModels | None = None, **of: dict[str, Any]
    ) -> None:
        """``of``: more about the models' specs, by their names."""
        super().__init__()
        self.box = box
        self.specs = default, *others = [
            ModelSpec(name, **{"config": Config(memory_reserve=0), "size_bytes": size, **of.get(name, {})})
            for name, size in box.sizes.items()
        ]
        self.models = Models(
            self.loop,
            Catalogue(default, others, strict=strict),
            Admission(Rates(0, 0), 256, 0, lambda: GIB),
            ServingMetrics(),
            None,
            box.new_engine,
            known or KnownModels(None),
            lambda: True,
            lambda _session, _end: None,
        )
        self.loop.after_poll = self.models.collect
        self.loop.before_sleep = self._run_ticks

    def _run_ticks(self) -> None:
        for host in self.models:
            host.run_tick()

    def until(self, condition: Callable[[], object], at_most: float = 300.0) -> None:
        """Turns, each after 10 ms of the loop's clock, until the condition holds."""
        for _ in range(int(at_most / 0.01)):
            if condition():
                return
            self.turn(0.01)
            time.sleep(0)  # For the threads.
        raise AssertionError("it did not come to that")

    def loaded(self) -> list[str]:
        return [one.name for one in self.models.listed() if one.state is ModelState.LOADED]

    def ask(self, model: str, prompt: str = "one two", max_tokens: int = 5, caller: Caller = CALLER) -> Client:
        client = Client()
        request = Generate("r", prompt, max_tokens, model=model)
        client.session = self.models.start(request, client.outputs.append, caller, self.loop.now())
        return client

    def question(self, model: str, answers: list[bytes | RequestError]) -> Question:
        query = Tokenize("one two", begins=False, special=False)
        question = Question(query, lambda _answer: b"made", answers.append, self.loop.now())
        self.models.ask(model, question, CALLER)
        return question

    def close(self) -> None:
        for thread in self.models.threads.all:
            assert thread.stop(5.0)
        self.models.close()
        super().close()


@pytest.fixture
def new_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModelsWorld]]:
    worlds: list[ModelsWorld] = []

    def new(total: int, sizes: dict[str, int], **settings: Any) -> ModelsWorld:
        box = Box(total, sizes)
        monkeypatch.setattr(models_module, "available_bytes", box.available)
        monkeypatch.setattr(models_module, "resident_bytes", box.resident)
        monkeypatch.setattr(models_module, "mapped_bytes", lambda _pids: 0)
        monkeypatch.setattr(model_loading, "resident_bytes", box.resident)
        monkeypatch.setattr(model_loading, "BESIDES_WEIGHTS", 0)
        # Each load collects all garbage, which in the tests' process takes as long as some hundred ticks.
        monkeypatch.setattr(model_host, "gc", Mock())
        worlds.append(ModelsWorld(box, **settings))
        world = worlds[-1]
        world.models.default.load(lambda _error: None)
        world.until(lambda: world.loaded() == [world.models.default.name])
        return world

    yield new
    for world in worlds:
        world.close()


NewWorld = Callable[..., ModelsWorld]


def test_a_name_chooses_the_model_and_loads_it(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    asked = world.ask("code")
    world.until(lambda: asked.end)
    assert asked.end is FinishReason.LENGTH
    assert asked.session.model == "code"
    assert any(isinstance(one, Loading) for one in asked.outputs) or asked.text
    assert world.loaded() == ["chat", "code"]


@pytest.mark.parametrize("name", ["", "default", "chat", "chat:latest", "chat.gguf", "gpt-5"])
def test_no_name_and_unknown_ones_mean_the_default_model(new_world: NewWorld, name: str) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    asked = world.ask(name)
    world.until(lambda: asked.end)
    assert asked.session.model == "chat"
    assert world.loaded() == ["chat"]


def test_unknown_names_are_refused_where_names_are_strict(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, strict=True)
    with pytest.raises(RequestError) as refused:
        world.ask("gpt-5")
    assert refused.value.fault is Fault.MODEL_NOT_FOUND
    assert refused.value.request_id == "r"
    world.ask("code")


def test_adapters_that_an_operator_sets_are_those_of_requests_that_name_none(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, code={"aliases": ("second",)})
    before = world.ask("code")
    world.models.set_adapters("second", (("a", 0.5),))
    assert (world.models.adapters("code"), world.models.adapters("chat")) == ((("a", 0.5),), None)
    own = Generate("r", "hi", 3, model="code", lora=(("b", 1.0),))
    named = world.models.start(own, Client().outputs.append, CALLER, world.loop.now())
    later, other = world.ask("code"), world.ask("chat")
    adapters = [session.request.lora for session in (before.session, named, later.session, other.session)]
    assert adapters == [None, (("b", 1.0),), (("a", 0.5),), None]
    for set_ in (lambda: world.models.set_adapters("gpt", ()), lambda: world.models.adapters("gpt")):
        with pytest.raises(RequestError, match="model"):
            set_()


def test_what_a_model_has_cached_is_erased(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    assert world.models.erase_cached("code") == 0, "it is not loaded"
    with pytest.raises(RequestError, match="model"):
        world.models.erase_cached("gpt")


KEYED = Caller("openai", "ip:192.0.2.1", "alice", models=("second", "not there"))
"""A caller whose key may use one of two models, which is named by an alias."""


def test_a_keys_models_are_all_that_it_sees_and_gets(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, code={"aliases": ("second",)})
    assert [one.name for one in world.models.listed(KEYED)] == ["code"]
    for name in ("", "default", "chat", "chat:latest", "gpt-5", "not there"):
        question = Question(Tokenize("one", special=False), lambda _answer: b"", lambda _answer: None, 0.0)
        for refused in (
            functools.partial(world.ask, name, caller=KEYED),
            functools.partial(world.models.ask, name, question, KEYED),
            functools.partial(world.models.info, name, KEYED),
            functools.partial(world.models.when_loaded, name, lambda _error: None, KEYED),
        ):
            with pytest.raises(RequestError) as raised:
                refused()
            assert raised.value.fault is Fault.MODEL_NOT_FOUND
            expected = "expected a model that GET /v1/models lists for this key"
            assert raised.value.message == f"model: {expected}, got {name or 'default'}"
    assert world.models.info("code", KEYED) is None
    asked = world.ask("code", caller=KEYED)
    world.until(lambda: asked.end)
    assert (asked.end, asked.session.model) == (FinishReason.LENGTH, "code")


def test_a_model_that_is_not_the_keys_is_not_even_loaded(new_world: NewWorld) -> None:
    world = new_world(3 * GIB, {"chat": 2 * GIB, "code": 2 * GIB})
    keyed = replace(KEYED, models=("chat",))
    for refused in (
        functools.partial(world.ask, "code", caller=keyed),
        functools.partial(world.models.when_loaded, "code", lambda _error: None, keyed),
    ):
        with pytest.raises(RequestError, match="lists for this key, got code"):
            refused()
    world.turn(10.0)
    assert world.loaded() == ["chat"]
    assert len(world.box.handles) == 1


def test_the_least_recently_used_model_makes_room(new_world: NewWorld) -> None:
    world = new_world(5 * GIB, {"chat": 2 * GIB, "code": 2 * GIB, "seen": 2 * GIB})
    for name in ("code", "chat", "seen"):
        asked = world.ask(name)
        world.until(lambda asked=asked: asked.end)
        assert asked.end is FinishReason.LENGTH
        world.turn(61.0)
    assert world.loaded() == ["chat", "seen"]


def test_a_stream_is_never_displaced_and_who_waits_gets_its_turn(new_world: NewWorld) -> None:
    world = new_world(3 * GIB, {"chat": 2 * GIB, "code": 2 * GIB})
    stream = world.ask("chat", max_tokens=150)
    asked = world.ask("code")
    world.until(lambda: asked.end)
    assert stream.end is FinishReason.LENGTH
    assert asked.end is FinishReason.LENGTH
    assert world.loaded() == ["code"]


def test_a_paused_stream_does_not_keep_its_model_loaded_and_goes_on_later(new_world: NewWorld) -> None:
    world = new_world(3 * GIB, {"chat": 2 * GIB, "code": 2 * GIB})
    stream = world.ask("chat", "one two three", max_tokens=60)
    world.until(lambda: stream.text)
    stream.session.manager.steer(stream.session, Pause())
    asked = world.ask("code")
    world.until(lambda: asked.end)
    assert world.loaded() == ["code"]
    assert stream.end is None
    stream.session.manager.steer(stream.session, Resume())
    world.until(lambda: stream.end)
    assert stream.end is FinishReason.LENGTH
    assert world.loaded() == ["chat"]
    alone = world.ask("chat", "one two three", max_tokens=60)
    world.until(lambda: alone.end)
    assert stream.text == alone.text


def test_a_model_that_can_never_fit_is_refused(new_world: NewWorld) -> None:
    world = new_world(3 * GIB, {"chat": GIB, "huge": 4 * GIB})
    asked = world.ask("huge")
    world.until(lambda: asked.end)
    assert asked.end is Fault.MEMORY_PRESSURE
    assert world.loaded() == ["chat"]


def test_a_model_that_cannot_be_loaded_fails_its_requests_alone(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    world.box.broken.add("code")
    asked, stream = world.ask("code"), world.ask("chat", max_tokens=20)
    world.until(lambda: asked.end and stream.end)
    assert asked.end is Fault.MODEL_NOT_LOADED
    assert stream.end is FinishReason.LENGTH
    assert [one.state for one in world.models.listed()] == [ModelState.LOADED, ModelState.FAILED]
    # It is tried again only after a pause, and if somebody asks for it.
    world.box.broken.clear()
    again = world.ask("code")
    world.turn(count=50)
    assert again.end is None
    world.until(lambda: again.end)
    assert again.end is FinishReason.LENGTH


@pytest.mark.parametrize("failure", [EngineLost("killed"), TooLarge("others took it", GIB)], ids=["killed", "taken"])
def test_requests_wait_while_it_is_others_fault_that_a_model_was_not_loaded(
    new_world: NewWorld, failure: Exception
) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    world.box.failures = [failure] * 2
    asked = world.ask("code")
    world.until(lambda: asked.end)
    assert asked.end is FinishReason.LENGTH
    assert not world.box.failures


def test_what_a_model_took_is_known_until_its_engine_is_lost(new_world: NewWorld, tmp_path: Path) -> None:
    models = {name: tmp_path / f"{name}.gguf" for name in ("chat", "code")}
    for file in models.values():
        file.touch()
    of = {name: {"config": Config(memory_reserve=0, model=str(file))} for name, file in models.items()}
    known = KnownModels(None)

    def worlds(box_has: int) -> ModelsWorld:
        world = new_world(box_has, {"chat": GIB, "code": GIB}, known=known, **of)
        world.box.sizes["code"] = 3 * GIB  # More than its file has.
        return world

    def needed(world: ModelsWorld) -> int:
        return world.models.listed()[1].needed_bytes

    def ask(world: ModelsWorld) -> object:
        asked = world.ask("code")
        world.until(lambda: asked.end)
        return asked.end

    world = worlds(8 * GIB)
    assert needed(world) == GIB
    assert ask(world) is FinishReason.LENGTH
    assert needed(world) == 3 * GIB
    # The next daemon plans by that from the first load on.
    other = worlds(8 * GIB)
    assert needed(other) == 3 * GIB
    assert ask(other) is FinishReason.LENGTH
    assert other.box.known == [("chat", GIB), ("code", 3 * GIB)]
    other.box.handles[-1].crash("SIGABRT")
    other.until(lambda: other.loaded() == ["chat"])
    assert ask(other) is FinishReason.LENGTH
    assert other.box.known[-1] == ("code", 0), "measured and tried out again"
    # One that fails is not known either, nor one whose file is another.
    other.models.unload("code")
    other.until(lambda: other.loaded() == ["chat"])
    other.box.broken.add("code")
    assert ask(other) is Fault.MODEL_NOT_LOADED
    assert known.needed_bytes(known.key(of["code"]["config"])) == 0
    other.box.broken.clear()
    assert ask(other) is FinishReason.LENGTH
    other.models.unload("code")
    other.until(lambda: other.loaded() == ["chat"])
    models["code"].write_bytes(b"other")
    assert ask(other) is FinishReason.LENGTH
    assert other.box.known[-3:] == [("code", 3 * GIB), ("code", 0), ("code", 0)]


def test_the_next_engine_and_the_next_daemon_start_from_what_ticks_took(new_world: NewWorld, tmp_path: Path) -> None:
    models = {name: tmp_path / f"{name}.gguf" for name in ("chat", "code")}
    for file in models.values():
        file.touch()
    of = {name: {"config": Config(memory_reserve=0, model=str(file))} for name, file in models.items()}
    known = KnownModels(None)

    def costs(world: ModelsWorld) -> tuple[Cost | None, Cost | None]:
        """Of the model that is loaded, and what is kept."""
        loaded = world.models.choose("code", None).loaded
        assert loaded is not None
        return loaded.scheduler.learned_cost, known.cost(known.key(of["code"]["config"]))

    def ask(world: ModelsWorld, tokens: int = 1) -> None:
        asked = world.ask("code", max_tokens=tokens)
        world.until(lambda: asked.end)
        assert asked.end is FinishReason.LENGTH

    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, known=known, **of)
    ask(world)
    assert costs(world) == (None, None)
    ask(world, 50)
    cost, kept = costs(world)
    assert cost is not None
    assert kept is None
    world.models.keep_costs()
    assert costs(world) == (cost, cost)
    ask(world, 50)
    cost, _ = costs(world)
    world.models.unload("code")
    world.until(lambda: world.loaded() == ["chat"])
    ask(world)
    assert costs(world) == (cost, cost), "one request teaches nothing new"
    ask(world, 50)
    cost, _ = costs(world)
    world.box.handles[-1].crash("SIGABRT")
    world.until(lambda: world.loaded() == ["chat"])
    assert known.cost(known.key(of["code"]["config"])) is None
    ask(world)
    assert costs(world) == (cost, cost)
    other = new_world(8 * GIB, {"chat": GIB, "code": GIB}, known=known, **of)
    ask(other)
    assert costs(other) == (cost, cost)
    other.models.unload("code")
    other.until(lambda: other.loaded() == ["chat"])
    models["code"].write_bytes(b"another model")
    ask(other)
    assert costs(other) == (None, None)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The file of a model, which is written again."""
    file = tmp_path / "model.gguf"
    file.write_bytes(b"first")
    return file


@pytest.mark.parametrize("pin", [False, True], ids=["", "pinned"])
@pytest.mark.parametrize("name", ["chat", "code"])
def test_a_model_is_loaded_again_once_its_file_was_written_again(
    new_world: NewWorld, written: Path, name: str, caplog: pytest.LogCaptureFixture, *, pin: bool
) -> None:
    of = {name: {"config": Config(memory_reserve=0, model=str(written)), "pin": pin}}
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, **of)
    asked, host = world.ask(name), world.models.choose(name, None)
    world.until(lambda: asked.end)
    engines = len(world.box.handles)
    world.models.look_at_files()
    written.write_bytes(b"second, half")
    world.models.look_at_files()
    written.write_bytes(b"second, and whole")
    world.models.look_at_files()
    world.turn(count=50)
    assert len(world.box.handles) == engines, "it is written still"
    stream = world.ask(name, max_tokens=60)
    world.until(lambda: stream.text)
    world.models.look_at_files()
    late = world.ask(name)
    world.until(lambda: late.end)
    assert stream.end is late.end is FinishReason.LENGTH
    assert len(world.box.handles) == engines + 1
    assert late.session.started_at > stream.session.last_made_at, "it waits for the new one"
    assert host.state is State.LOADED
    assert len([one for one in caplog.records if "files have changed on disk" in one.getMessage()]) == 1
    for _ in range(3):
        world.models.look_at_files()
        world.turn(count=50)
    assert len(world.box.handles) == engines + 1
    assert host.pinned == pin


def test_a_model_is_loaded_again_though_nobody_waits_for_it(new_world: NewWorld, written: Path) -> None:
    world = new_world(8 * GIB, {"chat": GIB}, chat={"config": Config(memory_reserve=0, model=str(written))})
    written.unlink()
    world.models.look_at_files()
    world.models.look_at_files()
    world.turn(count=50)
    assert (len(world.box.handles), world.loaded()) == (1, ["chat"]), "what was deleted stays mapped"
    written.write_bytes(b"another one")
    world.models.look_at_files()
    world.models.look_at_files()
    world.until(lambda: world.loaded() == [])
    world.until(lambda: world.loaded() == ["chat"])
    assert len(world.box.handles) == 2


def test_a_mended_file_is_loaded_before_the_pause_is_over(new_world: NewWorld, written: Path) -> None:
    world = new_world(
        8 * GIB, {"chat": GIB, "code": GIB}, code={"config": Config(memory_reserve=0, model=str(written))}
    )
    host = world.models.choose("code", None)
    world.box.broken.add("code")
    for _ in range(4):
        asked = world.ask("code")
        world.until(lambda asked=asked: asked.end)
    assert host.loading.retry_at > world.loop.now() + 10
    world.box.broken.clear()
    written.write_bytes(b"mended")
    asked, at = world.ask("code"), world.loop.now()
    world.models.look_at_files()
    world.models.look_at_files()
    world.until(lambda: asked.end)
    assert asked.end is FinishReason.LENGTH
    assert world.loop.now() < at + 2


def test_a_file_of_another_size_keeps_no_new_catalogue_away(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB})
    default = replace(world.specs[0], size_bytes=2 * GIB)
    world.models.take(Catalogue(default, [replace(default, name="new")]))
    assert [(one.name, one.size_bytes) for one in world.models.listed()] == [("chat", 2 * GIB), ("new", 2 * GIB)]
    assert world.loaded() == ["chat"]
    world.models.take(Catalogue(replace(default, pin=True), [replace(default, name="newer")]))
    assert [one.name for one in world.models.listed()] == ["chat", "new"]


def test_requests_fail_where_each_engine_is_killed_that_loads_their_model(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    world.box.failures = [EngineLost("killed")] * 10
    asked = world.ask("code")
    world.until(lambda: asked.end)
    error = asked.outputs[-1]
    assert isinstance(error, RequestError)
    assert error.fault is Fault.MODEL_NOT_LOADED
    assert error.retry_after_s
    assert len(world.box.failures) == 7


def test_streams_of_a_lost_engine_wait_until_their_model_fits_again(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    stream = world.ask("code", "one two three", max_tokens=60)
    world.until(lambda: stream.text)
    world.box.failures = [TooLarge("others took it", 7 * GIB)]
    world.box.handles[-1].crash("SIGABRT")
    world.until(lambda: stream.end)
    assert stream.end is FinishReason.LENGTH


def test_a_lost_engine_that_nobody_waits_for_is_not_replaced(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    for name in ("code", "chat"):
        asked = world.ask(name)
        world.until(lambda asked=asked: asked.end)
        engines = len(world.box.handles)
        host = world.models.choose(name, None)
        assert not host.recovers
        next(handle for handle in world.box.handles if handle.spec.name == name).crash("SIGKILL")
        world.until(lambda host=host: host.state is not State.LOADED)
        assert host.recovers == (name == "chat")
        world.turn(count=50)
        assert len(world.box.handles) == engines + (name == "chat"), "the default model's is"
    asked = world.ask("code")
    world.until(lambda: asked.end)
    assert asked.end is FinishReason.LENGTH


@pytest.mark.parametrize("broken", ["chat", "code"])
def test_a_model_that_can_not_be_loaded_again_keeps_no_other_from_being_loaded(
    new_world: NewWorld, broken: str
) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB, "new": GIB})
    stream = world.ask(broken, max_tokens=60)
    world.until(lambda: stream.text)
    world.box.broken.add(broken)
    next(handle for handle in world.box.handles if handle.spec.name == broken).crash("SIGBUS")
    world.until(lambda: stream.end)
    assert stream.end is Fault.MODEL_NOT_LOADED
    asked = world.ask("new")
    world.until(lambda: asked.end, 1.0)
    assert asked.end is FinishReason.LENGTH
    engines = len(world.box.handles)
    if broken == "chat":
        world.until(lambda: len(world.box.handles) == engines + 3)  # The default model is tried again and again.
    else:
        for _ in range(400):
            world.turn(1.0)
        assert len(world.box.handles) == engines
    world.until(lambda: next(one.state for one in world.models.listed() if one.name == broken) is ModelState.FAILED)
    assert world.models.choose(broken, None).recovers == (broken == "chat")
    # The file is whole again, and the operator doesn't wait for the end of a pause.
    world.box.broken.clear()
    world.models.load(broken)
    world.until(lambda: world.models.choose(broken, None).state is State.LOADED, 0.5)


def test_a_model_that_leaves_the_catalogue_while_it_pauses_is_loaded_no_more(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, code={"preload": True})
    world.until(lambda: world.loaded() == ["chat", "code"])
    world.box.broken.add("code")
    world.box.handles[-1].crash("SIGBUS")
    world.until(lambda: world.models.choose("code", None).loading.pausing)
    world.models.take(Catalogue(world.specs[0]))
    engines = len(world.box.handles)
    for _ in range(200):
        world.turn(1.0)
    assert len(world.box.handles) == engines


def test_a_crash_is_felt_by_its_models_streams_alone(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    streams = [world.ask(name, "one two three", max_tokens=60) for name in ("chat", "code")]
    world.until(lambda: all(stream.text for stream in streams))
    engines = len(world.box.handles)
    next(handle for handle in world.box.handles if handle.spec.name == "code").crash("SIGKILL")
    world.until(lambda: all(stream.end for stream in streams))
    assert [stream.end for stream in streams] == [FinishReason.LENGTH] * 2
    assert streams[0].text == streams[1].text
    assert len(world.box.handles) == engines + 1


def test_a_request_on_which_each_engine_is_killed_fails_alone(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = threading.Event()
    prepare = StandInEngine.prepare

    def stuck(engine: StandInEngine, request: Generate, *arguments: Any) -> Prepared:
        if request.prompt == "hostile":
            killed.wait(10.0)
            killed.clear()
        return prepare(engine, request, *arguments)

    monkeypatch.setattr(StandInEngine, "prepare", stuck)
    world = new_world(8 * GIB, {"chat": GIB})
    neighbours = [world.ask("chat", "one two three", max_tokens=60) for _ in range(2)]
    world.until(lambda: all(one.text for one in neighbours))
    hostile, host = world.ask("chat", "hostile"), world.models.default
    for _ in range(3):
        world.until(lambda: host.loaded is not None and hostile.session in host.loaded.scheduler.in_work)
        world.box.handles[-1].crash("SIGKILL")
        world.until(lambda: host.loaded is None)
        killed.set()
    late = world.ask("chat")
    world.until(lambda: all(one.end for one in (hostile, late, *neighbours)))
    assert hostile.end is Fault.DECODE_FAILED
    assert [one.end for one in (late, *neighbours)] == [FinishReason.LENGTH] * 3


def test_a_model_killed_for_memory_is_loaded_again_when_it_fits(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": 2 * GIB})
    stream, other = world.ask("code", "one two three", max_tokens=60), world.ask("chat", max_tokens=150)
    world.until(lambda: stream.text and other.text)
    # Another program has taken the memory.
    world.box.total = 5 * GIB // 2
    world.box.handles[-1].crash("memory")
    world.until(lambda: other.end)
    assert stream.end is None
    assert world.loaded() == ["chat"]
    world.until(lambda: stream.end)
    assert stream.end is FinishReason.LENGTH
    assert world.loaded() == ["code"]


def test_a_model_that_other_programs_leave_no_memory_for_is_refused_for_now(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": 2 * GIB}, chat={"pin": True})
    world.box.total = 2 * GIB
    asked = world.ask("code")
    world.until(lambda: asked.end)
    assert asked.end is Fault.MEMORY_PRESSURE
    world.box.total = 8 * GIB
    asked = world.ask("code")
    world.until(lambda: asked.end)
    assert asked.end is FinishReason.LENGTH


def test_an_idle_model_is_unloaded_after_its_time(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, code={"idle_unload": 30.0})
    asked = world.ask("code")
    world.until(lambda: asked.end)
    for _ in range(28):
        world.turn(1.0)
    assert world.loaded() == ["chat", "code"]
    for _ in range(12):
        world.turn(1.0)
    world.until(lambda: world.loaded() == ["chat"], 1.0)


def test_a_model_is_loaded_before_anybody_asks_for_it(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, code={"preload": True})
    world.until(lambda: world.loaded() == ["chat", "code"])


def test_a_new_catalogue_brings_models_and_lets_others_go_when_they_are_idle(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB, "old": GIB})
    code, old = world.ask("code", max_tokens=100), world.ask("old", max_tokens=100)
    world.until(lambda: code.text and old.text)
    chat, changed, _old = world.specs
    world.box.sizes["new"] = GIB
    world.models.take(
        Catalogue(chat, [replace(changed, size_bytes=GIB + 1), ModelSpec("new", Config(), size_bytes=GIB)])
    )
    world.until(lambda: code.end and old.end)
    assert [code.end, old.end] == [FinishReason.LENGTH] * 2
    world.until(lambda: [one.size_bytes for one in world.models.listed()] == [GIB, GIB + 1, GIB])
    assert [one.name for one in world.models.listed()] == ["chat", "code", "new"]
    world.until(lambda: sum(world.box.taken.values()) == GIB)
    again = [world.ask(name) for name in ("code", "new", "old")]
    world.until(lambda: all(one.end for one in again))
    assert [one.session.model for one in again] == ["code", "new", "chat"]


def test_a_new_catalogue_with_another_default_model_changes_nothing(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    world.models.take(Catalogue(world.specs[1]))
    assert [one.name for one in world.models.listed()] == ["chat", "code"]


def test_the_operator_loads_a_model_and_others_make_room(new_world: NewWorld) -> None:
    world = new_world(3 * GIB, {"chat": 2 * GIB, "code": 2 * GIB})
    world.models.load("code.gguf")
    assert [one.state for one in world.models.listed()] == [ModelState.LOADED, ModelState.LOADING]
    world.models.load("code")
    world.until(lambda: world.loaded() == ["code"])
    with pytest.raises(RequestError, match="code is loaded already") as refused:
        world.models.load("code")
    assert refused.value.fault is Fault.BAD_REQUEST


def test_what_the_operator_loads_must_exist_and_fit(new_world: NewWorld) -> None:
    world = new_world(3 * GIB, {"chat": GIB, "huge": 4 * GIB})
    with pytest.raises(RequestError) as unknown:
        world.models.load("gpt-5")
    with pytest.raises(RequestError) as refused:
        world.models.load("huge")
    assert (unknown.value.fault, refused.value.fault) == (Fault.MODEL_NOT_FOUND, Fault.MEMORY_PRESSURE)
    assert world.models.listed()[1].state is ModelState.UNLOADED


def test_the_operator_has_a_broken_model_tried_again_without_a_pause(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    world.box.broken.add("code")
    world.models.load("code")
    world.until(lambda: world.models.listed()[1].state is ModelState.FAILED)
    world.box.broken.clear()
    world.models.load("code")
    world.until(lambda: world.loaded() == ["chat", "code"], 0.5)


def test_the_operator_unloads_a_model_once_its_answers_have_ended(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    stream = world.ask("chat", max_tokens=60)
    world.until(lambda: stream.text)
    world.models.unload("chat")
    world.turn(0.01)
    late = world.ask("chat")
    answers: list[bytes | RequestError] = []
    world.question("chat", answers)
    with pytest.raises(RequestError, match="being unloaded already") as refused:
        world.models.unload("chat")
    assert refused.value.fault is Fault.BUSY
    world.until(lambda: stream.end)
    assert stream.end is FinishReason.LENGTH
    assert (late.text, answers) == ("", [])
    # Who came in the meantime has it loaded again.
    world.until(lambda: late.end and answers)
    assert late.end is FinishReason.LENGTH
    assert len(world.box.handles) == 2


def test_a_model_that_was_unloaded_stays_so_until_somebody_asks(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    world.models.unload("default")
    world.until(lambda: world.models.listed()[0].state is ModelState.UNLOADED)
    for _ in range(100):
        world.turn(1.0)
    assert world.loaded() == []
    with pytest.raises(RequestError, match="chat is not loaded") as refused:
        world.models.unload("chat")
    assert refused.value.fault is Fault.BAD_REQUEST
    asked = world.ask("chat")
    world.until(lambda: asked.end)
    assert asked.end is FinishReason.LENGTH


def test_a_model_that_was_to_be_unloaded_is_kept_if_the_operator_loads_it(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB})
    stream = world.ask("chat", max_tokens=60)
    world.until(lambda: stream.text)
    world.models.unload("chat")
    world.turn(0.01)
    world.models.load("chat")
    late = world.ask("chat")
    world.until(lambda: late.text)
    assert stream.end is None
    world.until(lambda: stream.end and late.end)
    assert len(world.box.handles) == 1


@pytest.mark.parametrize("name", ["chat", "code"])
def test_a_model_that_is_pinned_or_speaks_is_not_unloaded(new_world: NewWorld, name: str) -> None:
    voice = {"config": Config(memory_reserve=0, tts_model="voice.gguf", tts_mmproj="mmproj.gguf")}
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB}, chat=voice, code={"pin": True, "preload": True})
    world.until(lambda: world.loaded() == ["chat", "code"])
    with pytest.raises(RequestError, match="it stays loaded"):
        world.models.unload(name)


def test_a_model_that_is_being_loaded_is_not_unloaded(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    world.models.load("code")
    with pytest.raises(RequestError) as refused:
        world.models.unload("code")
    assert refused.value.fault is Fault.BUSY


def test_questions_and_unread_requests_wait_no_longer_than_requests_may_take(new_world: NewWorld) -> None:
    world = new_world(3 * GIB, {"chat": 2 * GIB, "code": 2 * GIB})
    stream = world.ask("chat", max_tokens=150)
    answers: list[bytes | RequestError] = []
    read: list[RequestError | None] = []
    world.question("code", answers).forgotten = True
    world.question("code", answers)
    world.models.when_loaded("code", read.append, CALLER)
    world.turn()
    world.models.expire(5.0)
    assert (answers, read) == ([], [])
    world.turn(6.0)
    world.models.expire(5.0)
    assert [error.fault for error in (*answers, *read) if isinstance(error, RequestError)] == [Fault.TIMED_OUT] * 2
    assert stream.session.ended
    world.models.expire(5.0)
    assert len(answers) == len(read) == 1


class UnreadBody:
    """A body that can't be read before its model is loaded, and its reply."""

    streaming, done, headers, whole_type = False, False, (), "text/plain"

    def __init__(self, models: Models) -> None:
        self.replies: list[RequestError] = []
        self._models = models

    def receive(self, body: bytes) -> list[Generate]:
        if self._models.info("code", CALLER) is None:
            raise ModelAwaited("code")
        return [Generate("r", body.decode(), max_tokens=1000, model="code")]

    def send(self, _index: int, _output: Output) -> list[bytes]:
        return []

    def error(self, error: RequestError) -> ErrorReply:
        self.replies.append(error)
        return ErrorReply(504, b"")


def test_the_time_that_a_request_waits_unread_counts(new_world: NewWorld) -> None:
    world = new_world(3 * GIB, {"chat": 2 * GIB, "code": 2 * GIB})
    stream = world.ask("chat", max_tokens=150)
    body, responder = UnreadBody(world.models), Mock()
    services = SimpleNamespace(loop=world.loop, models=world.models, speech=None, recordings=None)
    exchange = TextExchange(services, responder, body, CALLER, Mock(), {})
    exchange.start(b"one two")
    world.turn(4.0)
    world.until(lambda: world.loaded() == ["code"])
    assert stream.end is FinishReason.LENGTH
    world.until(lambda: any(True for _ in world.models.running()))
    world.models.expire(60.0)
    world.turn(0.5)
    assert not body.replies
    world.models.expire(4.4)
    world.turn()
    assert [error.fault for error in body.replies] == [Fault.TIMED_OUT]
    responder.respond.assert_called_once()


def test_the_time_of_a_question_counts_from_its_arrival(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    query = Tokenize("one two", begins=False, special=False)
    arrived_at = world.loop.now()
    world.turn(4.0)
    answers: list[bytes | RequestError] = []
    world.models.ask("code", Question(query, lambda _answer: b"made", answers.append, arrived_at), CALLER)
    world.models.expire(4.4)
    assert not answers
    world.models.expire(3.9)
    assert [error.fault for error in answers if isinstance(error, RequestError)] == [Fault.TIMED_OUT]


def test_a_question_waits_for_its_model(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    answers: list[bytes | RequestError] = []
    world.question("code", answers)
    assert answers == []
    world.until(lambda: answers)
    assert answers == [b"made"]
    assert world.loaded() == ["chat", "code"]


def test_metrics_are_of_all_models_together(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": GIB})
    one = world.models.snapshot()
    clients = [world.ask("code"), world.ask("chat")]
    world.until(lambda: all(client.end for client in clients))
    both = world.models.snapshot()
    assert one.keys() == both.keys()
    assert both["kv_cells_total"] == 2 * int(one["kv_cells_total"])
    assert both["tokens_generated_total"] == 10
    assert both["model"] == "chat"


def test_metrics_of_each_model(new_world: NewWorld) -> None:
    world = new_world(8 * GIB, {"chat": GIB, "code": 2 * GIB, "seen": GIB})
    clients = [world.ask("code"), world.ask("code", max_tokens=90)]
    world.until(lambda: clients[0].end and clients[1].text)
    at_work = world.models.snapshot_of_each()
    assert list(at_work) == ["chat", "code", "seen"]
    assert all(one.keys() == MODEL_HELP.keys() for one in at_work.values())
    assert [one["active_sessions"] for one in at_work.values()] == [0, 1, 0]
    assert [one["memory_bytes"] for one in at_work.values()] == [GIB, 2 * GIB, 0]
    assert [one["state"] for one in at_work.values()] == ["loaded", "loaded", "unloaded"]
    assert [bool(one["kv_cells_total"]) for one in at_work.values()] == [True, True, False]
    world.box.handles[-1].crash("SIGABRT")
    world.until(lambda: clients[1].end)
    world.models.unload("code")
    world.until(lambda: world.loaded() == ["chat"])
    after = world.models.snapshot_of_each()
    assert [one["tokens_generated_total"] for one in after.values()] == [0, 95, 0]
    assert [one["engine_crashes_total"] for one in after.values()] == [0, 1, 0]
    assert after["code"]["last_used"] > after["seen"]["last_used"] == 0
    assert world.models.snapshot()["tokens_generated_total"] == 95


def test_all_states_have_a_metric() -> None:
    assert [state.value for state in ModelState] == list(MODEL_STATES)


def test_the_loop_turns_once_more_when_a_burst_was_gathered(
    new_world: NewWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(8 * GIB, {"chat": GIB})
    assert world.models.default.loaded is not None
    scheduler = world.models.default.loaded.scheduler
    monkeypatch.setattr(policy, "gathers", lambda _snapshot: True)
    asked = world.ask("chat")
    world.until(lambda: scheduler.gathers)
    assert [at for at in _due(world) if at <= world.loop.now() + GATHER_S], "the loop would sleep"
    monkeypatch.setattr(policy, "gathers", lambda _snapshot: False)
    world.until(lambda: asked.end)
    assert not scheduler.gathers


def _due(world: ModelsWorld) -> list[float]:
    return [timer.at for timer in world.loop._timers._heap if timer.callback is not None]
