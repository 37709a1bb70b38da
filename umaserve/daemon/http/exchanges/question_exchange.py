"""One HTTP request with a question to the engine."""

from __future__ import annotations

from umaserve.core.errors import ModelAwaited, RequestError
from umaserve.core.queries import Embed
from umaserve.daemon.exchange import Exchange
from umaserve.daemon.http.exchange import JSON_TYPE, Responder
from umaserve.daemon.services import Services
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import ErrorReply, ErrorShape
from umaserve.dialects.routes import Asked, EngineQuestion
from umaserve.net.input_budget import InputShare
from umaserve.scheduler.questions import Question
from umaserve.sessions.caller import Caller
from umaserve.system import logs


class QuestionExchange(Exchange):
    """Asks the engine one question and replies with its answer."""

    def __init__(
        self,
        services: Services,
        facts: Facts,
        endpoint: EngineQuestion,
        errors: ErrorShape,
        responder: Responder,
        caller: Caller,
        share: InputShare,
    ) -> None:
        super().__init__(services, caller, share, responder.abort)
        self._facts = facts
        self._endpoint = endpoint
        self._errors = errors
        self._responder = responder
        self._asked_at = services.loop.now()
        self._asked: Asked | None = None
        self._question: Question | None = None

    def start(self, content: bytes) -> None:
        """Read the request's body and ask what it asks."""
        try:
            self._services.models.admit(self._caller, self._asked_at)
        except RequestError as error:
            self._answered(error)
        else:
            self._share.keep(len(content))
            self._ask(content)

    def _ask(self, content: bytes) -> None:
        models = self._services.models
        try:
            self._asked = asked = self._endpoint.parse(content, self._facts)
            question = Question(asked.query, asked.render, self.sink(self._answered), self._asked_at)
            models.ask(asked.model, question, self._caller)
            self._question = question
        except ModelAwaited as awaited:
            self.when_loaded(awaited.model, lambda: self._ask(content), self._answered)
        except RequestError as error:
            self._answered(error)

    def abandon(self, end: str = "abandoned") -> None:
        super().abandon(end)
        if self._question is not None:
            self._question.forgotten = True

    def _answered(self, answer: bytes | RequestError) -> None:
        self.end()
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
