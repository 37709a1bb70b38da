"""One HTTP request with a question to the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable

from umaserve.core.errors import ModelAwaited, RequestError
from umaserve.core.queries import Embed
from umaserve.daemon.http.responder import JSON_TYPE, Responder
from umaserve.daemon.services import Services
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import Asked, EngineQuestion, ErrorReply, ErrorShape
from umaserve.net.input_budget import InputShare
from umaserve.scheduler.questions import Question
from umaserve.sessions.caller import Caller
from umaserve.system import logs

log = logging.getLogger(__name__)


class QuestionExchange:
    """Asks the engine one question and replies with its answer."""

    def __init__(
        self,
        services: Services,
        facts: Facts,
        endpoint: EngineQuestion,
        errors: ErrorShape,
        responder: Responder,
        caller: Caller,
        memory: InputShare,
    ) -> None:
        """``memory`` counts the body until it is answered."""
        self._services = services
        self._facts = facts
        self._endpoint = endpoint
        self._errors = errors
        self._responder = responder
        self._caller = caller
        self._memory = memory
        self._asked_at = services.loop.now()
        self._asked: Asked | None = None
        self._question: Question | None = None
        self._forget: Callable[[], None] | None = None
        """While it waits for a model."""

    def start(self, content: bytes) -> None:
        try:
            self._services.models.admit(self._caller, self._asked_at)
        except RequestError as error:
            self._reply(error)
            return
        self._memory.keep(len(content))
        self._ask(content)

    def _ask(self, content: bytes) -> None:
        def loaded(error: RequestError | None) -> None:
            self._forget = None
            if error is None:
                self._ask(content)
            else:
                self._answered(error)

        models = self._services.models
        try:
            self._asked = asked = self._endpoint.parse(content, self._facts)
            question = Question(asked.query, asked.render, self._answered, self._asked_at)
            models.ask(asked.model, question, self._caller)
            self._question = question
        except ModelAwaited as awaited:
            self._forget = models.when_loaded(awaited.model, loaded, self._caller)
        except RequestError as error:
            self._answered(error)

    def release(self) -> None:
        """The reply comes in one piece: there is nothing to resume."""

    def abandon(self) -> None:
        self._memory.keep(0)
        if self._question is not None:
            self._question.forgotten = True
        if self._forget is not None:
            self._forget()

    def _answered(self, answer: bytes | RequestError) -> None:
        self._memory.keep(0)
        try:
            self._reply(answer)
        except Exception:
            log.exception("%s: closed: internal error while writing the reply", self._caller.peer)
            self._responder.abort()

    def _reply(self, answer: bytes | RequestError) -> None:
        reply = self._errors.of_request(answer) if isinstance(answer, RequestError) else ErrorReply(200, answer)
        took_ms = round((self._services.loop.now() - self._asked_at) * 1000, 1)
        caller = self._caller
        about = {"dialect": caller.dialect, "peer": caller.peer, "key": caller.key, "status": reply.status}
        logs.requests.info("question answered", extra={"fields": {**about, "total_ms": took_ms}})
        self._trace("done" if isinstance(answer, bytes) else answer.fault.name.lower())
        self._responder.respond(reply.status, [JSON_TYPE, *reply.headers], reply.body)

    def _trace(self, end: str) -> None:
        """Questions about tokens and templates take no time worth a span."""
        asked, traced = self._asked, self._services.traced
        if traced is not None and asked is not None and isinstance(asked.query, Embed):
            traced("rerank" if asked.query.ranks else "embeddings", asked.model, self._caller, self._asked_at, end)
