"""The registry: the connected workers, the models they have or had, and the best worker for a request."""

from __future__ import annotations

import heapq
import itertools
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from umaserve.relay.pool.request import RelayedRequest
from umaserve.relay.pool.worker import ANY_MODEL, Link, Worker
from umaserve.relay.pool.worker_group import WorkerGroup

MAX_MODELS_KNOWN = 4096
SLACK = 1.25
"""How much more than the mean load a worker may have from conversations that come back to it."""
MAX_PASSED = 32
"""Workers that a conversation may pass on the ring: where nearly all are busy, none of the others knows it anyway."""


class Registry:
    """The connected workers by id, in order of registration."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._places: set[str] = set()
        self._crews: dict[tuple[frozenset[str], frozenset[str]], WorkerGroup] = {}
        """Crews by the models and features that all workers of a crew have."""
        self._by_instance: dict[str, Worker] = {}
        self.changes = 0
        """Number of changes of the workers' loads."""
        self.slots = 0
        """Slots of all workers together."""
        self._models: list[str] | None = None
        """Models of connected workers; ``None`` after a change."""
        self._known: dict[str, None] = {}
        """Models that some worker has or had, the latest last; an ordered set of at most ``MAX_MODELS_KNOWN``."""

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def __contains__(self, worker: Worker) -> bool:
        return worker.id in self._workers

    def get(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def by_instance(self, instance: str) -> Worker | None:
        return self._by_instance.get(instance)

    def new(
        self,
        link: Link,
        name: str,
        models: Sequence[str],
        max_concurrent: int,
        load: int,
        features: Iterable[str],
        instance: str,
        contexts: Mapping[str, int],
    ) -> Worker:
        """A worker with a new id; it must be added by ``add``."""
        self.note(models)
        of_all = frozenset(features)
        return Worker(self._new_id(), name, link, models, max_concurrent, of_all, load, instance, contexts=contexts)

    def add(self, worker: Worker) -> None:
        self._workers[worker.id] = worker
        self.slots += worker.max_concurrent
        numbered = (f"{worker.name} {number}" for number in itertools.count(2))
        worker.place = next(name for name in itertools.chain((worker.name,), numbered) if name not in self._places)
        self._places.add(worker.place)
        if worker.instance:
            self._by_instance[worker.instance] = worker
        self._enlist(worker)

    def remove(self, worker: Worker) -> None:
        if self._workers.pop(worker.id, None) is not None:
            self._places.discard(worker.place)
            self.slots -= worker.max_concurrent
            if self._by_instance.get(worker.instance) is worker:
                del self._by_instance[worker.instance]
            self.changes += 1
            self._dismiss(worker)

    def change(self, worker: Worker, models: Sequence[str], contexts: Mapping[str, int]) -> None:
        """Set the models that the worker now has, and their ``contexts``."""
        self.note(models)
        worker.contexts = contexts
        if worker in self:
            self._dismiss(worker)
            worker.models = models
            self._enlist(worker)
        else:
            worker.models = models

    def noted(self, worker: Worker) -> None:
        """Take in that the worker's load has changed, or that it is being drained."""
        if worker in self:
            self.changes += 1
            self._crews[_offer(worker)].note(worker)

    def _enlist(self, worker: Worker) -> None:
        self._models = None
        self._crews.setdefault(_offer(worker), WorkerGroup()).add(worker)

    def _dismiss(self, worker: Worker) -> None:
        self._models = None
        crew = self._crews[_offer(worker)]
        crew.remove(worker)
        if not crew:
            del self._crews[_offer(worker)]

    def note(self, models: Iterable[str]) -> None:
        """Remember that there are, or were, workers with these models."""
        for model in models:
            self._known.pop(model, None)
            self._known[model] = None
        while len(self._known) > MAX_MODELS_KNOWN:
            del self._known[next(iter(self._known))]

    def models(self) -> list[str]:
        """The models of connected workers, in order of registration."""
        if self._models is None:
            found = dict.fromkeys(model for worker in self._workers.values() for model in worker.models)
            self._models = [model for model in found if model != ANY_MODEL]
        return self._models

    def context(self, model: str) -> int:
        """Tokens that prompt and answer may have together at each worker that has the model, as far as they say; 0
        where none does."""
        told = (worker.contexts.get(model, 0) for worker in self._workers.values() if model in worker.models)
        return min(filter(None, told), default=0)

    def only_model(self) -> str | None:
        """The only model there is, also while its workers are disconnected; ``None`` if there are several or none."""
        found = self.models() or [model for model in self._known if model != ANY_MODEL]
        return found[0] if len(found) == 1 else None

    def provides(self, request: RelayedRequest) -> bool:
        """Whether some worker has, or had, the request's model."""
        return self.knows(request.model) if request.model else bool(self._known)

    def knows(self, model: str) -> bool:
        """Whether some worker has, or had, this model, or any."""
        # The connected workers are checked too: the number of remembered models is limited.
        models = itertools.chain((self._known,), (models for models, _ in self._crews))
        return any(model in those or ANY_MODEL in those for those in models)

    def lacks_feature(self, request: RelayedRequest) -> bool:
        """Whether there are workers with the request's model, none of which has the feature that it needs."""
        offering = [crew.any for crew in self._crews.values() if crew.any.offers(request.model)]
        return bool(offering) and not any(worker.serves(request) for worker in offering)

    def best_for(self, request: RelayedRequest) -> Worker | None:
        """The worker that the request goes to; ``None`` where none is free."""
        crews = [crew for crew in self._crews.values() if crew.any.serves(request)]
        free = [worker for crew in crews if (worker := crew.least_loaded()) is not None]
        if not free:
            return None
        own = None if request.beginning is None else _next_on_ring(crews, request.beginning)
        return own or min(free, key=lambda worker: worker.rank)

    def home_of(self, request: RelayedRequest) -> str:
        """The place of the worker that its conversation's turns go to while that is free, or empty."""
        if request.beginning is None:
            return ""
        ring = _ring([crew for crew in self._crews.values() if crew.any.serves(request)], request.beginning)
        return next((worker.place for _, worker in ring if not worker.draining), "")

    def _new_id(self) -> str:
        while True:
            made = f"w-{secrets.token_hex(3)}"
            if made not in self._workers:
                return made


def _next_on_ring(crews: Sequence[WorkerGroup], point: int) -> Worker | None:
    """The next free worker whose load would be within bounds (consistent hashing with bounded loads)."""
    most = math.ceil(SLACK * (sum(crew.load for crew in crews) + 1) / max(1, sum(crew.size for crew in crews)))
    for _, worker in itertools.islice(_ring(crews, point), MAX_PASSED):
        if worker.free and worker.load < min(most, worker.max_concurrent):
            return worker
    return None


def _ring(crews: Sequence[WorkerGroup], point: int) -> Iterator[tuple[int, Worker]]:
    rings = [crew.after(point) for crew in crews]
    # Nearly always there is one crew only, and its first worker is taken.
    return rings[0] if len(rings) == 1 else heapq.merge(*rings, key=lambda step: step[0])


def _offer(worker: Worker) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(worker.models), worker.features
