"""Operations of the relay for administrators."""

from __future__ import annotations

from collections.abc import Mapping

from umaserve.dialects.reference import Body, Described, Operation, Parameter, Reply
from umaserve.relay.http.schemas import (
    CreateKeyBody,
    CreateKeyReply,
    Done,
    DrainBody,
    ListKeysReply,
    ListWorkersReply,
    Worker,
)
from umaserve.wire.declared import string, value

_ID = Parameter("id", "path")
_DRAIN = Body(DrainBody, required=False)


def _operation(
    name: str, summary: str, replies: Mapping[str, Reply], *, of_one: bool = False, body: Body | None = None
) -> Operation:
    """An operation that needs the token of administrators. ``of_one``: the path has an id."""
    return Operation(
        name,
        summary,
        replies=replies,
        body=body,
        parameters=(_ID,) if of_one else (),
        tag="operation",
        security=[{"admin": []}],
    )


def _ok(reply: Described) -> dict[str, Reply]:
    return {"200": Reply("OK", json=reply)}


FOR_ADMINISTRATORS = {
    ("GET", "/admin/workers"): _operation("listWorkers", "All workers", _ok(ListWorkersReply)),
    ("GET", "/admin/stats"): _operation("stats", "Get the values of /metrics", _ok(value(type="object"))),
    ("GET", "/admin/metrics"): _operation(
        "adminMetrics",
        "Get the metrics, with the usage of all keys",
        {"200": Reply("OK", content={"text/plain": string(description="Prometheus' text format.")})},
    ),
    ("POST", "/admin/workers/{id}/drain"): _operation(
        "drainWorker", "Drain a worker, and disconnect it", _ok(Worker), of_one=True, body=_DRAIN
    ),
    ("POST", "/admin/drain"): _operation(
        "drainAll", "Drain all workers, and disconnect them", _ok(ListWorkersReply), body=_DRAIN
    ),
    ("POST", "/admin/workers/{id}/refresh"): _operation(
        "refreshWorker", "Ask a worker for its models", _ok(Done), of_one=True
    ),
    ("POST", "/admin/refresh"): _operation("refreshAll", "Ask all workers for their models", _ok(Done)),
    ("GET", "/admin/keys"): _operation("listKeys", "List the clients' keys, without their secrets", _ok(ListKeysReply)),
    ("POST", "/admin/keys"): _operation(
        "createKey",
        "Create a key for a client",
        {"201": Reply("Created", json=CreateKeyReply)},
        body=Body(CreateKeyBody),
    ),
    ("DELETE", "/admin/keys/{id}"): _operation("revokeKey", "Revoke a key", _ok(Done), of_one=True),
}
