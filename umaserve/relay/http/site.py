"""The relay's routes, for clients, workers and operators."""

from __future__ import annotations

import functools
import hmac
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from umaserve.access.attempts import FailedAttempts, counted_as, peer_address
from umaserve.access.gate import REALTIME_SUBPROTOCOL, SUBPROTOCOL, Gate, check_form, check_json
from umaserve.core.errors import RequestError
from umaserve.dialects.anthropic.errors import ERRORS as ANTHROPICS_ERRORS
from umaserve.dialects.http import ErrorReply
from umaserve.dialects.mcp.errors import ERRORS as MCPS_ERRORS
from umaserve.dialects.ollama.errors import ERRORS as OLLAMAS_ERRORS
from umaserve.dialects.openai.errors import ERRORS
from umaserve.http.connection import HttpConnection, HttpLimits, Serve
from umaserve.net.input_budget import InputBudget
from umaserve.net.loop import Loop
from umaserve.relay.http.admin import Admin
from umaserve.relay.http.conversation import Conversation
from umaserve.relay.http.exchange import RelayExchange
from umaserve.relay.http.intake import ANTHROPIC_HEADER, FORM_PATHS, MESSAGES, Intake
from umaserve.relay.http.pages import PROBES, Pages
from umaserve.relay.http.realtime import MAX_EVENT_BYTES, RealtimeConversation
from umaserve.relay.http.relayed import ANTHROPIC_PATHS, CONVERSATIONS, REALTIME, RELAYED, instead_of
from umaserve.relay.http.responses import RESPONSES, Responses
from umaserve.relay.http.tools import Tools
from umaserve.relay.http.worker_link import LinkLimits, WorkerLink
from umaserve.relay.pool.accounts import Accounts
from umaserve.relay.pool.pool import Pool
from umaserve.relay.pool.request import Client, RelayedRequest
from umaserve.settings.relay import RelayConfig
from umaserve.wire.http_head import Headers, Refusal, Request, shown
from umaserve.wire.websocket import CloseCode, WebSocketCodec

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Conversation)

CONNECT = "/v1/worker/connect"
ADMIN = "/admin/"
OLLAMAS = "/api/"
MCP = "/mcp"
MAX_BODIES, SMALL_BYTES = 16, 1024 * 1024
"""The memory for bodies and messages that are being received or wait for an answer, in bodies of the largest size. The
first ``SMALL_BYTES`` of each are not counted."""
SECRET_HEADER, SECRET_PARAMETER = "x-worker-secret", "worker_secret"


@dataclass(slots=True)
class AccessChecks:
    """Access checks. ``worker_secret`` may be replaced at any time; ``accounts`` are the clients' (``None``: no key is
    needed)."""

    gate: Gate
    worker_secret: str
    accounts: Accounts | None
    attempts: FailedAttempts


class RelaySite:
    """Implements ``http.connection.Site``."""

    def __init__(
        self,
        loop: Loop,
        config: RelayConfig,
        pool: Pool,
        doors: AccessChecks,
        admin: Admin,
        metrics: Callable[[Sequence[str]], bytes],
        leaving: Callable[[], bool],
    ) -> None:
        """``leaving``: whether the relay is to end."""
        self.limits = HttpLimits(config.max_body_bytes, config.header_timeout, config.body_timeout, config.idle_timeout)
        self.input_budget = InputBudget(loop, MAX_BODIES * config.max_body_bytes, SMALL_BYTES)
        self._loop = loop
        self._config = config
        self._pool = pool
        self._doors = doors
        self._admin = admin
        self._intake = Intake(pool.workers, config.default_model, doors.accounts, by_prefix=config.route_by == "prefix")
        self._responses = Responses(loop, pool, self._intake, self.input_budget)
        self._tools = Tools(pool, self._intake, doors.accounts)
        self._pages = Pages(pool, self._intake, config.provider, metrics, leaving, self._check_key, doors.accounts)

    def error_reply(self, path: str, headers: Collection[str], error: RequestError | Refusal) -> ErrorReply:
        if path.startswith(OLLAMAS):
            return OLLAMAS_ERRORS.reply(error)
        if path == MCP:
            return MCPS_ERRORS.reply(error)
        anthropic = path.startswith(MESSAGES) or ANTHROPIC_HEADER in headers
        return (ANTHROPICS_ERRORS if anthropic and path not in RELAYED - ANTHROPIC_PATHS else ERRORS).reply(error)

    def cors_headers(self, head: Request) -> Headers:
        return self._doors.gate.cors_headers(head)

    def judge(self, head: Request, peer: str) -> Serve:
        if head.path != CONNECT:
            # The check protects browsers' users; workers are none and authenticate with their secret.
            self._doors.gate.check_names(head, by_file=False)
        methods, serve = self._route(head)
        if head.method == "OPTIONS":
            return functools.partial(self._tell_methods, methods)
        if head.method not in methods:
            got = f"method: expected {' or '.join(methods)}, got {head.method}"
            instead = instead_of(f"{head.method} {head.path}")
            raise Refusal(405, f"{got}: {instead}" if instead else got, [("Allow", ", ".join(methods))])
        if head.path.startswith(ADMIN):
            self._admin.check(head, self._address(head, peer))
        elif head.path not in (CONNECT, *PROBES):
            self._check_key(head)
        if head.path in FORM_PATHS:
            check_form(head)
        elif head.method == "POST" and not head.path.startswith(ADMIN):
            check_json(head)
        return serve

    def _route(self, head: Request) -> tuple[Sequence[str], Serve]:
        path = head.path
        if path in RELAYED:
            return ("POST",), self._relay
        if path in CONVERSATIONS:
            return ("GET",), self._talk if path == REALTIME else self._converse
        if path == MCP:
            return ("POST",), self._serve_tools
        if path == CONNECT:
            return ("GET",), self._connect_worker
        if path.startswith(ADMIN):
            return self._admin.methods(path), self._admin.serve
        if found := self._responses.find(path, self._tenant):
            return found
        page = self._pages.find(path)
        if page is None:
            if instead := instead_of(path):
                raise Refusal(404, f"path: there is no {path[:64]}: {instead}")
            carried = ", ".join(sorted(RELAYED | CONVERSATIONS | {MCP}))
            other = "ask a daemon directly for anything else"
            raise Refusal(404, f"path: there is no {path[:64]}: a relay forwards {carried}; {other}")
        return ("GET", "HEAD"), page

    def _tell_methods(self, methods: Sequence[str], connection: HttpConnection, request: Request) -> None:
        allow = ("Allow", ", ".join([*methods, "OPTIONS"]))
        connection.respond(200, [allow, *self._doors.gate.preflight_headers(request)], b"")

    def _check_key(self, head: Request) -> str:
        """The name of the request's key; empty where no key is needed. Raises for a wrong key."""
        key = self._doors.gate.key_of(head)
        return "" if key is None else key.name

    def _tenant(self, connection: HttpConnection, request: Request) -> str:
        """Whose responses the request may see: its key's, or its address's."""
        name = self._check_key(request)
        return f"key:{name}" if name else f"ip:{counted_as(self._address(request, connection.peer))}"

    def _address(self, head: Request, peer: str) -> str:
        return peer_address(peer, head.header_values("x-forwarded-for"), self._config.trusted_proxy)

    # -- clients -------------------------------------------------------------------------------------------------

    def _admitted(self, request: Request) -> str:
        """The name of its key, whose rates allow one more request."""
        name = self._check_key(request)
        self._count(name)
        return name

    def _count(self, name: str) -> None:
        if self._doors.accounts is not None:
            self._doors.accounts.admit(name)

    def _relay(self, connection: HttpConnection, request: Request) -> None:
        name = self._admitted(request)
        if request.path in RESPONSES:
            self._responses.relay(connection, request, name, self._tenant(connection, request))
            return
        exchange = RelayExchange(connection, self._pool)
        relayed = self._intake.request(request, name, exchange)
        connection.pending = exchange
        exchange.start(relayed)

    def _converse(self, connection: HttpConnection, request: Request) -> None:
        # The key's name is taken from the handshake: it may be revoked before the first message, which is then refused.
        name = self._admitted(request)
        new_request = self._intake.conversation(request, name)
        rest = connection.upgrade(request, [SUBPROTOCOL])
        conversation = self._conversation(
            Conversation,
            connection,
            request,
            new_request,
            lambda text: self._intake.later_message(text, name),
            self._config.max_body_bytes,
        )
        connection.hand_over(conversation, rest)

    def _talk(self, connection: HttpConnection, request: Request) -> None:
        name = self._admitted(request)
        new_request = self._intake.session(request, name)
        rest = connection.upgrade(request, [REALTIME_SUBPROTOCOL])
        max_bytes = min(self._config.max_body_bytes, MAX_EVENT_BYTES)
        session = self._conversation(
            RealtimeConversation, connection, request, new_request, lambda text: text, max_bytes
        )
        session.start(lambda: self._count(name))
        connection.hand_over(session, rest)

    def _conversation(
        self,
        kind: type[C],
        connection: HttpConnection,
        request: Request,
        new_request: Callable[[str, Client], RelayedRequest],
        later_message: Callable[[str], str],
        max_bytes: int,
    ) -> C:
        return kind(
            self._loop,
            self._pool,
            connection.channel,
            WebSocketCodec(max_bytes),
            request.path,
            new_request,
            later_message,
            connection.lost,
            self.input_budget.share(connection.channel),
            ping_interval=self._config.ping_interval,
            idle_timeout=self._config.idle_timeout,
            max_bytes=max_bytes,
        )

    def _serve_tools(self, connection: HttpConnection, request: Request) -> None:
        self._tools.serve(connection, request, self._check_key(request))

    # -- workers -------------------------------------------------------------------------------------------------

    def _connect_worker(self, connection: HttpConnection, request: Request) -> None:
        refusal = self._refusal(connection, request)
        rest = connection.upgrade(request, [])
        config = self._config
        link = WorkerLink(
            self._loop,
            self._pool,
            connection.channel,
            WebSocketCodec(config.max_message_bytes),
            LinkLimits(config.heartbeat_interval, config.heartbeat_timeout, config.header_timeout),
            connection.peer,
            connection.lost,
        )
        connection.hand_over(link, b"" if refusal else rest)
        if refusal:
            # After the handshake: workers read the reason from the close frame.
            link.close(CloseCode.POLICY_VIOLATION, refusal)

    def _refusal(self, connection: HttpConnection, request: Request) -> str:
        wrong = self._wrong_credential(request)
        if wrong:
            return self._note_refused(self._address(request, connection.peer), wrong)
        # A worker with the right secret is never blocked for others' failed attempts at its address.
        if self._pool.closing or len(self._pool.workers) >= self._config.max_workers:
            return "the relay accepts no more workers"
        return ""

    def _wrong_credential(self, request: Request) -> str:
        """What is wrong with a worker's credentials; empty where nothing is."""
        presented = request.header(SECRET_HEADER) or request.query.get(SECRET_PARAMETER, "")
        if not hmac.compare_digest(presented.encode(errors="replace"), self._doors.worker_secret.encode()):
            return "its worker_secret is wrong" if presented else "it has sent no worker_secret"
        provider = request.query.get("provider", self._config.provider)
        if provider != self._config.provider:
            return f"provider: expected {shown(self._config.provider)}, got {shown(provider)}"
        return ""

    def _note_refused(self, address: str, reason: str) -> str:
        """The close reason for the worker. The refusal is logged, up to a limit for each address."""
        if self._doors.attempts.blocked(address):
            return "worker authentication temporarily rate limited"
        self._doors.attempts.failed(address)
        log.warning("refused a worker: %s", reason, extra={"fields": {"peer": address}})
        return "worker authentication failed"
