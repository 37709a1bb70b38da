"""The models of the daemon: which one a name means, and which are loaded, by the plan of ``models.residency``."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from umaserve.core.errors import Fault, ModelNotFound, RequestError, model_not_granted
from umaserve.core.events import ListedModel, ModelInfo
from umaserve.core.metrics import ServingMetrics
from umaserve.core.model_names import DEFAULT
from umaserve.core.requests import Generate
from umaserve.models import report, residency
from umaserve.models.engine_supervisor import NewEngine
from umaserve.models.engine_threads import EngineThreads
from umaserve.models.known_models import KnownModels
from umaserve.models.loaded_model import LoadedModel
from umaserve.models.model_context import ModelContext
from umaserve.models.model_host import ModelHost
from umaserve.models.residency_snapshot import Model, Snapshot, State
from umaserve.net.loop import Loop
from umaserve.net.timers import Timer
from umaserve.scheduler.other_models import OtherModels
from umaserve.scheduler.questions import Question
from umaserve.scheduler.scheduler import Scheduler
from umaserve.sessions.admission import Admission
from umaserve.sessions.caller import Caller
from umaserve.sessions.content_filter import ContentFilter
from umaserve.sessions.engine_api import Adapters
from umaserve.sessions.manager import SessionManager, Totals
from umaserve.sessions.resumed import Resumed
from umaserve.sessions.session import Session, Sink
from umaserve.settings.models import Catalogue, ModelSpec
from umaserve.system.memory import available_bytes, mapped_bytes, resident_bytes

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two looks at what has changed without an event: work ends, other programs take memory."""
WAITING_LOOK_S = 0.05
"""Seconds between two looks at such changes while somebody waits for a model."""


class Models:
    """All models of a catalogue. They share the threads, and so one tick runs at a time."""

    def __init__(
        self,
        loop: Loop,
        catalogue: Catalogue,
        admission: Admission,
        metrics: ServingMetrics,
        content_filter: ContentFilter | None,
        new_engine: NewEngine,
        known: KnownModels,
        wanted: Callable[[], bool],
        ended: Callable[[Session, str], None],
    ) -> None:
        """``ended`` is as in ``SessionManager``; ``wanted``: whether engines are to be loaded."""
        self.threads = EngineThreads(loop.wake, keeps=bool(catalogue.default.config.kv_cache))
        self._loop = loop
        self.catalogue = catalogue
        self._admission = admission
        self._metrics = metrics
        self._reserve_bytes = catalogue.default.config.memory_reserve
        self._room_bytes: int | None = None
        self._look_at: float = math.inf
        self._timer: Timer | None = None
        self._wanted = wanted
        self._ended = ended
        self.totals = Totals()
        self._around = ModelContext(
            loop,
            self.threads,
            admission,
            metrics,
            content_filter,
            new_engine,
            known,
            OtherModels(lambda: loop.call_soon(_nothing)),
            self._pids,
            self._available_bytes,
            wanted,
            self.schedule_replan,
        )
        self._hosts = {spec.name: self._new_host(spec) for spec in catalogue.models}
        self.default = self._hosts[catalogue.default.name]

    def _new_host(self, spec: ModelSpec) -> ModelHost:
        sessions = SessionManager(
            self._admit, self._loop.now, self._ended, spec.name, self.totals, lambda: self.request_load(host)
        )
        host = ModelHost(spec, sessions, self._around, default=spec.name == self.catalogue.default.name)
        return host

    # -- which model ---------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ModelHost]:
        """The default one first."""
        return iter(self._hosts.values())

    def choose(self, name: str, caller: Caller | None) -> ModelHost:
        """The model that is meant by a request's ``name``. Raises ``RequestError`` if there is none, and the operator
        wants no other instead, or if it isn't for ``caller``; ``None``: any."""
        host = self._hosts[self.catalogue.choose(name).name]
        if caller is not None and not caller.may_use(host.name, host.spec.aliases):
            raise model_not_granted(name or DEFAULT)
        return host

    def of(self, session: Session) -> ModelHost:
        """The model that answers it."""
        return self._hosts.get(session.model, self.default)

    def info(self, name: str, caller: Caller | None) -> ModelInfo | None:
        """Properties of the model that is meant by ``name``, as ``choose``; ``None`` if it has not been loaded yet."""
        return self.choose(name, caller).info

    def listed(self, caller: Caller | None = None) -> Sequence[ListedModel]:
        """Models of the catalogue, of ``caller`` those for it, the default one first."""
        since_1970 = time.time() - self._loop.now()
        hosts = [self._hosts[spec.name] for spec in self.catalogue.models]
        return [
            report.listed(host, default=host is self.default, room_bytes=self._room_bytes, since_1970=since_1970)
            for host in hosts
            if caller is None or caller.may_use(host.name, host.spec.aliases)
        ]

    # -- requests ------------------------------------------------------------------------------------------------

    def start(
        self,
        request: Generate,
        sink: Sink,
        caller: Caller,
        now: float,
        *,
        admitted: bool = False,
        arrived_at: float | None = None,
    ) -> Session:
        """Start a request with the model that it asks for; as ``SessionManager.start``."""
        try:
            host = self.choose(request.model, caller)
        except RequestError as error:
            self.default.sessions.refuse(request, caller, now if arrived_at is None else arrived_at, error)
            raise
        if request.lora is None and host.adapters is not None:
            request = replace(request, lora=host.adapters)
        return host.sessions.start(request, sink, caller, now, admitted=admitted, arrived_at=arrived_at)

    def take_over(self, request: Generate, begun: Resumed, sink: Sink, caller: Caller, now: float) -> Session:
        """Take over a request, as ``SessionManager.take_over``; raises ``RequestError`` where the model isn't there."""
        host = self.choose(request.model, caller)
        if host.name != begun.model:
            raise ModelNotFound(begun.model)
        return host.sessions.take_over(request, begun, sink, caller, now)

    def admit(self, caller: Caller, now: float) -> None:
        """Raise ``RequestError`` if a request of this caller is refused now, whatever model it is for."""
        self.default.sessions.admit(caller, now)

    @property
    def draining(self) -> bool:
        """Whether no more requests are admitted, since ``drain``."""
        return self.default.sessions.draining

    def drain(self) -> None:
        for host in self:
            host.sessions.draining = True

    def running(self) -> Iterator[Session]:
        """Running sessions of each model, the oldest first."""
        return itertools.chain.from_iterable(host.sessions.running() for host in self)

    def expire(self, seconds: float) -> None:
        """Fail what takes longer, as ``ModelHost.expire``."""
        for host in self:
            host.expire(seconds)

    def ask(self, name: str, question: Question, caller: Caller) -> None:
        """Ask the model that is meant by ``name``; as ``Questions.ask``."""
        host = self.choose(name, caller)
        host.ask(question)
        self.request_load(host)

    def when_loaded(self, name: str, then: Callable[[RequestError | None], None], caller: Caller) -> Callable[[], None]:
        """Call ``then``, as ``ModelHost.when_loaded``, of the model that is meant by ``name``."""
        host = self.choose(name, caller)
        forget = host.when_loaded(then)
        self.request_load(host)
        return forget

    def take(self, catalogue: Catalogue) -> None:
        """Serve the models of a new catalogue. The default one stays as it is; any other that is gone or different does
        so until it is not in use any more."""
        # What another file means for the default one, its host sees for itself.
        before = self.catalogue.default
        if catalogue.default.of_file(before) != before:
            log.warning("models: the default model has changed, which needs a restart: the new list is ignored")
            return
        old, new = ({spec.name: spec for spec in one.models} for one in (self.catalogue, catalogue))
        changes = {
            "new": sorted(new.keys() - old.keys()),
            "gone": sorted(old.keys() - new.keys()),
            "changed": sorted(name for name in new.keys() & old.keys() if new[name] != old[name]),
        }
        log.info("list of models reloaded", extra={"fields": changes})
        self.catalogue = catalogue
        self.default.spec = catalogue.default
        self._follow_catalogue()

    def _follow_catalogue(self) -> None:
        specs = {spec.name: spec for spec in self.catalogue.models}
        leaving = [host for host in self if host.spec != specs.get(host.name)]
        for host in leaving:
            if host.unused and host.state is State.LOADED:
                host.unload()
            elif host.unused and host.state in (State.UNLOADED, State.FAILED):
                host.stop()
                del self._hosts[host.name]
        for name in specs.keys() - self._hosts.keys():
            self._hosts[name] = self._new_host(specs[name])

    def _admit(self, caller: Caller, _waiting: int, now: float) -> None:
        self._admission(caller, sum(host.sessions.waiting for host in self), now)

    # -- by hand -------------------------------------------------------------------------------------------------

    def load(self, name: str) -> None:
        """Have the model of this name loaded, as if somebody waited for it. Raises ``RequestError`` where there is
        none, or it can't be."""
        ends: list[RequestError | None] = []
        self._named(name).load_by_operator(ends.append)
        self._look()
        if ends and ends[0] is not None:
            raise ends[0]

    def unload(self, name: str) -> None:
        """Have the model of this name unloaded once what it runs has ended; requests that come until then wait, and
        have it loaded again. Raises ``RequestError`` as ``load``."""
        self._named(name).unload_by_operator()
        self.schedule_replan()

    def erase_cached(self, name: str) -> int:
        """Drop what the model of this name has cached, as ``Scheduler.erase_cached``. Raises ``RequestError``."""
        loaded = self._named(name).loaded
        return 0 if loaded is None else loaded.scheduler.erase_cached()

    def scheduler_of(self, name: str) -> Scheduler:
        """The scheduler of the model of this name. Raises ``RequestError`` where it isn't loaded, or there is none."""
        loaded = self._named(name).loaded
        if loaded is None:
            raise RequestError(Fault.MODEL_NOT_LOADED, "model", "it is not loaded: a request that names it loads it")
        return loaded.scheduler

    def set_adapters(self, name: str, scales: Adapters) -> None:
        """Have requests for the model of this name use these adapters, unless they name their own. Raises
        ``RequestError``."""
        self._named(name).adapters = scales

    def adapters(self, name: str) -> Adapters | None:
        """Scales that ``set_adapters`` has set; ``None``: all at 1. Raises ``RequestError``."""
        return self._named(name).adapters

    def _named(self, name: str) -> ModelHost:
        spec = self.catalogue.find(name)
        if spec is None:
            raise ModelNotFound(name)
        return self._hosts[spec.name]

    # -- which are loaded ----------------------------------------------------------------------------------------

    def request_load(self, host: ModelHost) -> None:
        """Plan again soon where the model takes no requests now: somebody wants something of it."""
        if host.state is not State.LOADED or host.sessions.holds_back:
            self.schedule_replan()

    def schedule_replan(self) -> None:
        """Plan again soon: something has changed that the plan depends on."""
        self._look_again(0.0)

    def _look_again(self, seconds: float) -> None:
        at = self._loop.now() + seconds
        if at >= self._look_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._look_at, self._timer = at, self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Do what the plan says."""
        if self._timer is not None:
            self._timer.cancel()
        self._look_at, self._timer = math.inf, None
        if not self._wanted():
            return
        self._follow_catalogue()
        now = self._loop.now()
        models = [host.residency_entry(now) for host in self]
        snapshot = self._snapshot(now, models)
        moves, self._room_bytes = residency.plan(snapshot), max(0, residency.most_bytes(snapshot))
        for host in self:
            if host.state is State.LOADED:
                host.sessions.holds_back = host.name in moves.hold
        for name, problem in moves.refuse.items():
            log.warning("%s can't be loaded: %s", name, problem)
            self._hosts[name].fail_all(RequestError(Fault.MEMORY_PRESSURE, "model", problem))
        for name in moves.unload:
            self._hosts[name].unload()
        for name in moves.load:
            self._load(self._hosts[name])
        waits = any(model.waiting for model in models)
        self._look_again(min(WAITING_LOOK_S if waits else LOOK_S, max(0.0, moves.again_at - now)))

    def _load(self, host: ModelHost) -> None:
        def done(error: BaseException | None) -> None:
            if error is not None:
                host.on_load_failed(error)

        host.load(done)

    def _snapshot(self, now: float, models: Sequence[Model]) -> Snapshot:
        loading = [host for host in self if host.state is State.LOADING]
        own = resident_bytes()
        return Snapshot(
            now=now,
            models=models,
            available_bytes=self._available_bytes(),
            promised_bytes=sum(
                max(0, host.loading.needed_bytes + own - resident_bytes(host.place.pids)) for host in loading
            ),
            reserve_bytes=self._reserve_bytes,
        )

    def _available_bytes(self) -> int:
        """Bytes available, without the weights that engines have mapped: the kernel could drop them, but each token
        reads them all."""
        return max(0, available_bytes() - mapped_bytes(self._pids()))

    def _pids(self) -> Sequence[int]:
        return [pid for host in self for pid in host.place.pids]

    # -- for the daemon's turns ----------------------------------------------------------------------------------

    def collect(self) -> None:
        """Run the callbacks of finished jobs."""
        for thread in self.threads.all:
            thread.collect()
        for host in self:
            host.place.collect()

    @property
    def _loaded(self) -> Sequence[LoadedModel]:
        return [host.loaded for host in self if host.loaded is not None]

    def tell_waiting(self) -> None:
        for host in self:
            host.tell_waiting()

    def shed_caches(self) -> None:
        for one in self._loaded:
            one.scheduler.shed_caches()

    def keep_costs(self) -> None:
        """Have what the ticks of all take known to the next daemon."""
        for host in self:
            if host.loaded is not None:
                host.loading.keep_cost(host.loaded.scheduler.learned_cost)

    def look_at_files(self) -> None:
        """Have models whose files have changed loaded again, unless the daemon drains."""
        for host in self if self._wanted() else ():
            host.look_at_files()

    def end_if_one_hangs(self) -> None:
        for host in self:
            host.end_if_it_hangs()

    @property
    def idle(self) -> bool:
        return all(host.idle for host in self)

    def put_away(self) -> bool:
        """Write to disk what was computed, as ``Scheduler.put_away``, of all models."""
        return not [one for one in self._loaded if not one.scheduler.put_away()]

    def refuse_waiting(self, *, of_loaded: bool) -> None:
        """Fail what has not started; ``of_loaded``: also where the model is loaded, so that its turn would come."""
        for host in self:
            if of_loaded or host.state is not State.LOADED:
                host.refuse_waiting()

    def fail_begun(self) -> None:
        for one in self._loaded:
            one.scheduler.fail_begun()

    def fail_running(self) -> None:
        for one in self._loaded:
            one.scheduler.fail_running()

    def close(self) -> None:
        """Close the engines, after the threads have ended."""
        for host in self:
            host.place.end()

    @property
    def children(self) -> Sequence[int]:
        """The processes that compute for the daemon."""
        return self._pids()

    def snapshot(self) -> Mapping[str, int | float | str]:
        """The models' part of the metrics: of all together, except the names."""
        about: dict[str, int | float | str] = {
            "load_progress": round(self.default.place.progress, 3),
            "model": "" if self.default.info is None else self.default.name,
        }
        return {**about, **report.metrics_of_all(list(self)), **self._metrics.snapshot()}

    def snapshot_of_each(self) -> Mapping[str, Mapping[str, int | str]]:
        """The metrics of each by its name; ``exposition.MODEL_HELP`` explains them."""
        return {model.name: report.metrics(self._hosts[model.name], model) for model in self.listed()}


def _nothing() -> None:
    """Does nothing: scheduling it makes the loop turn once more."""
