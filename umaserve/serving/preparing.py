"""Prepares requests, one at a time on a thread of its own: filter, template, tokenize, compile the grammar, index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from umaserve.errors import Fault, RequestError
from umaserve.messages import Detokenize, Detokenized, Generate, TokenIds
from umaserve.serving.answer_text import AnswerText
from umaserve.serving.content_filter import ContentFilter
from umaserve.serving.policy import is_background
from umaserve.serving.sessions import Session, SessionManager
from umaserve.serving.speculation import Repetition
from umaserve.serving.states import State
from umaserve.serving.ticks import Engine, JobQueue, Prepared
from umaserve.serving.turns import Turns

log = logging.getLogger(__name__)

MAX_MEDIA_AHEAD = 4
"""Prompts with media that are prepared but not started: their pixels and spectra take more memory than their files."""


class Preparing:
    """Prepares one request at a time, so that clients who leave before it cost nothing. Interactive requests go first;
    within a class, tenants take turns, so that one tenant's slow schemas delay another by one request at most."""

    def __init__(
        self,
        sessions: SessionManager,
        engine: Engine,
        worker: JobQueue,
        clock: Callable[[], float],
        content_filter: ContentFilter | None,
        *,
        shared_prefixes: bool,
        draft_tokens: bool,
    ) -> None:
        """``draft_tokens``: whether to index prompts for draft tokens from repetition."""
        self._sessions = sessions
        self._engine = engine
        self._worker = worker
        self._now = clock
        self._filter = content_filter
        self._shares_prefixes = shared_prefixes
        self._speculates = draft_tokens
        self._waiting: list[Session] = []
        self._session: Session | None = None
        """The one whose request is being prepared."""
        self._turns = Turns()

    def add(self, sessions: Iterable[Session]) -> None:
        self._waiting += sessions

    def serves(self, session: Session) -> bool:
        """Whether the request of ``session`` is being prepared now."""
        return session is self._session

    def next(self) -> None:
        """Prepare the next request, unless one is in progress."""
        if self._session is not None or not self._waiting:
            return
        self._waiting = [session for session in self._waiting if session.running]
        media_ahead = sum(map(_is_ahead_with_media, self._sessions.running()))
        ready = [s for s in self._waiting if media_ahead < MAX_MEDIA_AHEAD or not _has_media(s)]
        if not ready:
            return
        session = min(ready, key=self._order)
        self._waiting.remove(session)
        self._turns.take(session.caller.tenant)
        request, tenant = session.request, "" if self._shares_prefixes else session.caller.tenant
        assert request is not None

        def prepared(result: tuple[Prepared, Repetition | None] | BaseException) -> None:
            self._session = None
            session.waits_since = self._now()
            if session.state is not State.PREFILL:
                return
            if isinstance(result, tuple):
                session.prepared, session.repetition = result
                session.request = _without_media(request)
                session.text = AnswerText(
                    session.prepared.text, None if self._filter is None else self._filter.stream()
                )
            elif isinstance(result, RequestError):
                self._sessions.fail(session, result)
            else:
                log.error("request %s: preparing it failed", request.id, exc_info=result)
                self._sessions.fail(
                    session, RequestError(Fault.DECODE_FAILED, "request", "the server failed; its log says why")
                )

        self._session = session
        self._worker.submit(lambda: self._prepare(request, tenant, lambda: session.running), prepared)

    def _order(self, session: Session) -> tuple[bool, int, int]:
        assert session.request is not None
        background = is_background(session.request.priority, session.requested_at, self._now())
        return background, self._turns.last(session.caller.tenant), session.id

    def _prepare(
        self, request: Generate, tenant: str, wanted: Callable[[], bool]
    ) -> tuple[Prepared, Repetition | None]:
        """On the preparing thread."""
        if self._filter is not None:
            self._filter.check_prompt("\n".join(self._prompt_texts(request)))
        prepared = self._engine.prepare(request, tenant, wanted)
        if not self._speculates:
            return prepared, None
        text_from = prepared.spans[-1].end if prepared.spans else 0
        return prepared, Repetition(prepared.tokens[text_from:])

    def _prompt_texts(self, request: Generate) -> Iterator[str]:
        """All texts that the client sends to the model."""
        match request.prompt:
            case str() as text:
                yield text
            case TokenIds() as tokens:
                answer = self._engine.answer(Detokenize(tokens.ids))
                assert isinstance(answer, Detokenized)
                yield answer.text
            case turns:
                for turn in turns:
                    yield turn.content
                    yield from (call.arguments for call in turn.tool_calls)
        for tool in request.tools:
            yield from (tool.description, tool.parameters)


def has_media(request: Generate) -> bool:
    """Whether ``request`` has images, audio or video to decode."""
    return isinstance(request.prompt, tuple) and any(turn.attachments for turn in request.prompt)


def _has_media(session: Session) -> bool:
    assert session.request is not None
    return has_media(session.request)


def _is_ahead_with_media(session: Session) -> bool:
    spans = () if session.prepared is None else session.prepared.spans
    return bool(spans) and session.started_at is None and not session.holds


def _without_media(request: Generate) -> Generate:
    """The request without its attachments, which would otherwise take megabytes until the answer's end."""
    if not has_media(request):
        return request
    assert isinstance(request.prompt, tuple)
    return replace(request, prompt=tuple(replace(turn, attachments=()) for turn in request.prompt))
