"""The operators' API: workers, statistics, drain, refresh, and the clients' keys."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import orjson

from umaserve.access.attempts import FailedAttempts
from umaserve.access.key_entries import MAX_MODELS, PRIORITIES, Key
from umaserve.access.keys import KeyFile
from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.core.exposition import PROMETHEUS
from umaserve.http.connection import JSON, HttpConnection
from umaserve.relay.http.intake import MAX_NAME_BYTES
from umaserve.relay.pool.accounts import Accounts
from umaserve.relay.pool.pool import Pool
from umaserve.relay.pool.worker import Worker
from umaserve.wire.fields import Fields, array, parse_json, string
from umaserve.wire.http_head import Refusal, Request

log = logging.getLogger(__name__)

MAX_TIMEOUT_S = 3600.0
MAX_RATE = 10**9
KEY_PREFIX = "umar_"


class _Terms(TypedDict):
    """What the holder of a key may do, as ``KeyFile.add`` takes it."""

    group: str
    requests_per_minute: float
    tokens_per_minute: float
    models: Sequence[str]


class Admin:
    """Serves ``/admin/…``; disabled without a token. Raises ``Refusal`` or ``RequestError``."""

    def __init__(
        self,
        pool: Pool,
        keys: KeyFile | None,
        accounts: Accounts | None,
        token: str,
        attempts: FailedAttempts,
        stats: Callable[[], Mapping[str, Any]],
        metrics: Callable[[Sequence[str]], bytes],
        drain_timeout: float,
    ) -> None:
        """``metrics`` gets the names of the keys whose usage is shown."""
        self._pool = pool
        self._accounts = accounts
        self._metrics = metrics
        self.token = token
        """The admin token; may be replaced at any time."""
        self._keys = keys
        self._attempts = attempts
        self._stats = stats
        self._drain_timeout = drain_timeout

    def check(self, head: Request, address: str) -> None:
        """Check the request's token, in constant time. Raises for a wrong one, and after too many wrong ones from
        ``address``."""
        if not self.token:
            raise Refusal(404, "path: the admin API is off: --admin-token-file turns it on")
        if self._attempts.blocked(address):
            raise RequestError(Fault.RATE_LIMITED, "Authorization", "too many wrong tokens; try again later")
        scheme, _, presented = (head.header("authorization") or "").partition(" ")
        right = hmac.compare_digest(presented.strip().encode(errors="replace"), self.token.encode())
        if scheme.lower() != "bearer" or not right:
            self._attempts.failed(address)
            raise RequestError(
                Fault.UNAUTHORIZED, "Authorization", "expected the admin token (Authorization: Bearer …)"
            )

    def methods(self, path: str) -> Sequence[str]:
        match path.split("/")[2:]:
            case ["workers"] | ["stats"] | ["metrics"]:
                return ("GET", "HEAD")
            case ["keys"]:
                return ("GET", "HEAD", "POST")
            case ["keys", _]:
                return ("DELETE",)
            case ["workers", _, "drain" | "refresh"] | ["drain"] | ["refresh"]:
                return ("POST",)
        raise Refusal(404, f"path: there is no {path[:64]}: see /openapi.json")

    def serve(self, connection: HttpConnection, request: Request) -> None:
        try:
            self._answer(connection, request)
        except ConfigError as error:
            # From the clients' keys, for example where the disk is full.
            log.error("%s", error)
            raise RequestError(
                Fault.DECODE_FAILED, "keys", "the file of keys can't be used: see the relay's log"
            ) from None

    def _answer(self, connection: HttpConnection, request: Request) -> None:
        match request.method, request.path.split("/")[2:]:
            case _, ["workers"]:
                self._reply(connection, {"workers": [_shown(one) for one in self._pool.workers]})
            case _, ["stats"]:
                self._reply(connection, self._stats())
            case _, ["metrics"]:
                names = [] if self._accounts is None else sorted(self._accounts.used)
                connection.respond(200, [("Content-Type", PROMETHEUS)], self._metrics(names))
            case _, ["workers", id_, "drain"]:
                worker = self._worker(id_)
                self._pool.drain(worker, *self._drain_options(request))
                self._reply(connection, _shown(worker))
            case _, ["drain"]:
                options = self._drain_options(request)
                workers = list(self._pool.workers)
                for worker in workers:
                    self._pool.drain(worker, *options)
                self._reply(connection, {"workers": [_shown(worker) for worker in workers]})
            case _, ["workers", id_, "refresh"]:
                self._pool.refresh(self._worker(id_), "admin")
                self._reply(connection, {"status": "ok"})
            case _, ["refresh"]:
                for worker in self._pool.workers:
                    self._pool.refresh(worker, "admin")
                self._reply(connection, {"status": "ok"})
            case "POST", ["keys"]:
                fields = _fields(request)
                name = fields.string("name", max_bytes=64)
                if name is None:
                    raise RequestError(Fault.BAD_REQUEST, "name", "expected a string, got null")
                made = self._client_keys().add(name, prefix=KEY_PREFIX, **_terms(fields))
                self._reply(connection, {"name": name, "key": made}, 201)
            case _, ["keys"]:
                self._reply(connection, {"keys": [self._shown_key(key) for key in self._client_keys().list()]})
            case _, ["keys", id_]:
                if not self._client_keys().revoke_by_id(id_):
                    raise RequestError(Fault.NOT_FOUND, "key", f"no key has the id {id_[:64]}")
                self._reply(connection, {"status": "ok"})

    def _worker(self, id_: str) -> Worker:
        worker = self._pool.workers.get(id_)
        if worker is None:
            raise RequestError(Fault.NOT_FOUND, "worker", f"no worker has the id {id_[:64]}")
        return worker

    def _client_keys(self) -> KeyFile:
        if self._keys is None:
            raise RequestError(Fault.NOT_FOUND, "keys", "clients need no keys: see --client-keys")
        return self._keys

    def _shown_key(self, key: Key) -> dict[str, object]:
        return {
            "id": str(key.id),
            "name": key.name,
            "created": key.created,
            "revoked": key.revoked,
            "class": key.group,
            "requests_per_minute": key.requests_per_minute or 0.0,
            "tokens_per_minute": key.tokens_per_minute or 0.0,
            "models": key.models or None,
            "used": {} if self._accounts is None else self._accounts.shown(key.name),
        }

    def _drain_options(self, request: Request) -> tuple[str, float]:
        fields = _fields(request) if request.body else Fields({})
        reason = fields.string("reason", max_bytes=256) or "maintenance"
        timeout_s = fields.number("drain_timeout_secs", 0, MAX_TIMEOUT_S)
        return reason, self._drain_timeout if timeout_s is None else timeout_s

    def _reply(self, connection: HttpConnection, value: object, status: int = 200) -> None:
        connection.respond(status, [JSON], orjson.dumps(value))


def _fields(request: Request) -> Fields:
    return Fields(Fields.of(parse_json(request.body), "body").values)


def _terms(fields: Fields) -> _Terms:
    named = fields.values.get("models")
    models = [] if named is None else array(named, fields.name("models"), 1, MAX_MODELS, "names")
    return {
        "group": fields.one_of("class", PRIORITIES) or "interactive",
        "requests_per_minute": fields.number("requests_per_minute", 0, MAX_RATE) or 0.0,
        "tokens_per_minute": fields.number("tokens_per_minute", 0, MAX_RATE) or 0.0,
        "models": [string(model, f"models[{i}]", max_bytes=MAX_NAME_BYTES) for i, model in enumerate(models)],
    }


def _shown(worker: Worker) -> dict[str, object]:
    return {
        "id": worker.id,
        "name": worker.name,
        "models": list(worker.models),
        "max_concurrent": worker.max_concurrent,
        "in_flight": len(worker.in_flight),
        "cancelled": len(worker.cancelled),
        "load": worker.load,
        "draining": worker.draining,
        "features": sorted(worker.features),
    }
