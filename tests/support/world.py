"""What a test builds its piece of the program on: a loop whose clock the test moves, and a daemon's services on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from clock import Clock
from hooked_loop import HookedLoop
from standin import StandInEngine, StandInVoice, SteppedWorker

from umaserve.access.client_secrets import ClientSecrets
from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ListedModel, Metrics, ModelInfo, ModelState, SlotFile
from umaserve.daemon.detached import Detached
from umaserve.daemon.kept_streams import KeptStreams
from umaserve.daemon.model_downloads import ModelDownloads
from umaserve.daemon.services import Services
from umaserve.daemon.store.store import Store
from umaserve.daemon.turn_detection import TurnDetection
from umaserve.net.input_budget import InputBudget
from umaserve.scheduler.questions import Question, Questions
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager
from umaserve.settings.daemon import Config
from umaserve.stages.recordings import Recordings
from umaserve.stages.spoken import Speech
from umaserve.tool_servers.servers import ToolServers

if TYPE_CHECKING:
    from umaserve.models.registry import Models
    from umaserve.system.threads import JobThread


def nothing() -> None:
    pass


class World:
    """A loop, and its clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.loop = HookedLoop(self.clock)

    def turn(self, seconds: float = 0.0, count: int = 1) -> None:
        """Turns of the loop, the first after this time."""
        self.clock.now += seconds
        for _ in range(count):
            # A turn with a posted call never sleeps.
            self.loop.call_soon(nothing)
            self.loop.turn()

    def close(self) -> None:
        self.loop.close()


class StandInModels:
    """Implements what services need of ``models.registry.Models``, with one model."""

    def __init__(self, world: DaemonWorld) -> None:
        self._world = world
        self.moved: list[tuple[str, str]] = []
        """What was to be loaded, unloaded or erased, and its name."""
        self.scales: tuple[tuple[str, float], ...] | None = None
        sessions = world.sessions
        self.start, self.take_over, self.admit = sessions.start, sessions.take_over, sessions.admit
        self.running, self.totals = sessions.running, sessions.totals

    def load(self, name: str) -> None:
        self.moved.append(("load", name))

    def unload(self, name: str) -> None:
        self.moved.append(("unload", name))

    def erase_cached(self, name: str) -> int:
        self.moved.append(("erase", name))
        return 7

    def scheduler_of(self, _name: str) -> SimpleNamespace:
        def save(number: int, filename: str, answered: Callable[[SlotFile | RequestError], None]) -> None:
            self.moved.append((f"save {number}", filename))
            answered(SlotFile(filename, 300, 5000, 0.25))

        def restore(filename: str, answered: Callable[[SlotFile | RequestError], None]) -> None:
            self.moved.append(("restore", filename))
            self._world.loop.call_soon(
                lambda: (
                    answered(RequestError(Fault.NOT_FOUND, "filename", f'there is no "{filename}"'))
                    if filename == "none"
                    else answered(SlotFile(filename, 300, 5000, 0.25))
                )
            )

        return SimpleNamespace(save_slot=save, restore_slot=restore)

    def set_adapters(self, _name: str, scales: tuple[tuple[str, float], ...]) -> None:
        self.scales = scales

    def adapters(self, _name: str) -> tuple[tuple[str, float], ...] | None:
        return self.scales

    @property
    def draining(self) -> bool:
        return self._world.sessions.draining

    @property
    def default(self) -> SimpleNamespace:
        world = self._world
        return SimpleNamespace(
            name="stand-in",
            info=self.info("", None),
            recovers=world.recovers,
            hangs=lambda seconds: world.tick_s > seconds,
        )

    def __iter__(self) -> Iterator[SimpleNamespace]:
        return iter([self.default])

    def info(self, _name: str, _caller: Caller | None) -> ModelInfo | None:
        return self._world.engine.info if self._world.loaded else None

    def listed(self, _caller: Caller | None = None) -> list[ListedModel]:
        state = ModelState.LOADED if self._world.loaded else ModelState.LOADING
        takes = ("audio",) if self._world.engine.info.hears else ()
        context = self._world.engine.info.context_tokens
        return [ListedModel("stand-in", (), "", True, 0, state, 0.0, 0, None, self.info("", None), takes, context)]

    def ask(self, _name: str, question: Question, _caller: Caller) -> None:
        self._world.questions.ask(question)
        self._world.asked.append(question)


class DaemonWorld(World):
    """A daemon's services. The engine is a stand-in, and its threads do their work when the test steps them."""

    def __init__(self, config: Config, engine: StandInEngine | None = None, voice: StandInVoice | None = None) -> None:
        super().__init__()
        self.engine = engine or StandInEngine()
        self.compute, self.preparing, self.speaking = SteppedWorker(), SteppedWorker(), SteppedWorker()
        self.turns = SteppedWorker()
        self.sessions = SessionManager(clock=self.clock, model="stand-in")
        config = config.sized(0)
        self.questions = Questions(self.engine, self.compute, self.preparing, self.preparing, config.max_queue)
        self.asked: list[Question] = []
        self.speech = Speech(voice, nothing, cast("JobThread", self.speaking))
        models = cast("Models", StandInModels(self))
        self.budget = InputBudget(self.loop, 2 * config.max_chat_bytes, config.max_frame_bytes)
        self.loaded = True
        self.recovers = self.leaving = False
        self.tick_s = 0.0
        """How long the tick in work has taken."""
        self.stuck: dict[str, float] = {}
        self.traced: list[tuple[object, ...]] = []
        self.services = Services(
            config=config,
            loop=self.loop,
            detached=Detached(
                self.loop,
                models,
                config.resume_window,
                config.resume_bytes,
                leaves=bool(config.resume_file),
            ),
            streams=KeptStreams(self.loop, config.resume_window, config.resume_bytes),
            models=models,
            downloads=ModelDownloads(self.loop, config, models, lambda then: then(), lambda: self.leaving),
            tool_servers=ToolServers(self.loop, ()),
            metrics=lambda: Metrics({}),
            started_at=0,
            prometheus=lambda: b"",
            feedback=None,
            speech=self.speech,
            turns=TurnDetection(None, cast("JobThread", self.turns)),
            recordings=Recordings("", 0, 0, nothing),
            client_secrets=ClientSecrets(self.clock),
            store=Store(config, self.clock, nothing),
            ref_audio=None,
            content_filter=None,
            input_budget=self.budget,
            stuck=lambda: self.stuck,
            leaving=lambda: self.leaving,
            traced=lambda *told: self.traced.append(told),
        )

    def deliver(self) -> None:
        for _ in self.sessions.deliver():
            continue
