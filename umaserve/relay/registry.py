"""The registry: the connected workers, the models they have or had, and the best worker for a request."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence

from umaserve.relay.request import RelayedRequest
from umaserve.relay.worker import ANY_MODEL, Link, Worker

MAX_MODELS_KNOWN = 4096


class Registry:
    """The connected workers by id, in order of registration."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
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

    def new(
        self, link: Link, name: str, models: Sequence[str], max_concurrent: int, load: int, features: Iterable[str]
    ) -> Worker:
        """A worker with a new id; it must be added by ``add``."""
        self.note(models)
        return Worker(self._new_id(), name, link, models, max_concurrent, frozenset(features), load)

    def add(self, worker: Worker) -> None:
        self._workers[worker.id] = worker

    def remove(self, worker: Worker) -> None:
        self._workers.pop(worker.id, None)

    def note(self, models: Iterable[str]) -> None:
        """Remember that there are, or were, workers with these models."""
        for model in models:
            self._known.pop(model, None)
            self._known[model] = None
        while len(self._known) > MAX_MODELS_KNOWN:
            del self._known[next(iter(self._known))]

    def models(self) -> list[str]:
        """The models of connected workers, in order of registration."""
        found = dict.fromkeys(model for worker in self._workers.values() for model in worker.models)
        return [model for model in found if model != ANY_MODEL]

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
        models = (self._known, *(worker.models for worker in self._workers.values()))
        return any(model in those or ANY_MODEL in those for those in models)

    def lacks_feature(self, request: RelayedRequest) -> bool:
        """Whether there are workers with the request's model, none of which has the feature that it needs."""
        offering = [worker for worker in self._workers.values() if worker.offers(request.model)]
        return bool(offering) and not any(worker.serves(request) for worker in offering)

    def best_for(self, request: RelayedRequest) -> Worker | None:
        """The free worker with the lowest load that serves it; among equals, the one whose last dispatch is oldest."""
        free = (worker for worker in self._workers.values() if worker.free and worker.serves(request))
        return min(free, key=lambda worker: (worker.load, worker.given_at), default=None)

    def _new_id(self) -> str:
        while True:
            made = f"w-{secrets.token_hex(3)}"
            if made not in self._workers:
                return made
