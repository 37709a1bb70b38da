"""Prepares requests, one at a time on a thread of its own: filter, template, tokenize, compile the grammar, index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import FinishReason
from umaserve.core.queries import Detokenize, Detokenized
from umaserve.core.requests import Generate, Infill, MixedText, TokenIds
from umaserve.scheduler.policy.snapshot import is_background
from umaserve.scheduler.turns import Turns
from umaserve.sessions.answer_text import AnswerText, text_of
from umaserve.sessions.content_filter import ContentFilter
from umaserve.sessions.engine_api import Engine, JobQueue, Prepared, Span
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.resumed import Resumed, catch_up
from umaserve.sessions.session import Session
from umaserve.sessions.speculation import PromptIndex, Repetition
from umaserve.sessions.states import State

log = logging.getLogger(__name__)

MAX_MEDIA_AHEAD = 4
"""Prompts with media that are prepared but not started: their pixels and spectra take more memory than their files."""


Ready = tuple[Prepared, Repetition | None, AnswerText]


class Preparing:
    """Prepares one request at a time, so that clients who leave before it cost nothing. All choices that a request asks
    for are prepared together. Interactive requests go first; within a class, tenants take turns, so that one tenant's
    slow schemas delay another by one request at most."""

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
        self._choices: list[Session] = []
        """Sessions whose request is being prepared."""
        self._turns = Turns()

    def add(self, sessions: Iterable[Session]) -> None:
        self._waiting += sessions

    @property
    def in_work(self) -> Sequence[Session]:
        """Sessions whose request is being prepared now."""
        return self._choices

    def serves(self, session: Session) -> bool:
        """Whether the request of ``session`` is being prepared now."""
        return session in self._choices

    def next(self) -> None:
        """Prepare the next request, unless one is in progress."""
        if self._choices or not self._waiting:
            return
        self._waiting = [session for session in self._waiting if session.running]
        # The choices of one request share theirs.
        media_ahead = len({id(spans) for spans in map(_spans_ahead, self._sessions.running()) if spans})
        ready = [s for s in self._waiting if media_ahead < MAX_MEDIA_AHEAD or not _has_media(s)]
        if not ready:
            return
        first = min(ready, key=self._order)
        choices = [session for session in ready if session is first or _is_other_choice(session, first)]
        self._waiting = [session for session in self._waiting if session not in choices]
        self._turns.take(first.caller.tenant)
        requests = [session.request for session in choices]
        generated, begun = list(first.generated), first.begun if first.text is None else None
        tenant = "" if self._shares_prefixes else first.caller.tenant

        def wanted() -> bool:
            return any(session.running for session in choices)

        def prepared(result: list[Ready] | BaseException) -> None:
            self._choices = []
            for index, session in enumerate(choices):
                session.waits_since = self._now()
                if session.state is State.PREFILL:
                    self._end(session, result if isinstance(result, BaseException) else result[index])

        self._choices = choices
        for session in choices:
            session.preparing_at = self._now() if session.preparing_at is None else session.preparing_at
        self._worker.submit(lambda: self._prepare(requests, tenant, wanted, generated, begun), prepared)

    def _end(self, session: Session, result: Ready | BaseException) -> None:
        if isinstance(result, tuple):
            prepared, repetition, text = result
            session.request = session.request.with_small_media()
            if session.text is not None and not prepared.spans and session.before is not None:
                # A template with the time in it has made another prompt.
                prepared = replace(prepared, tokens=session.before.tokens)
            self._sessions.prepared(session, prepared, session.text or text, session.repetition or repetition)
            if len(session.generated) >= prepared.max_tokens and session.request.prompt_logprobs is None:
                # It wants no token, or there is less room than in the process that began it.
                self._sessions.finish(session, FinishReason.LENGTH)
        elif isinstance(result, RequestError):
            self._sessions.fail(session, result.copy())
        else:
            log.error("request %s: preparing it failed", session.request.id, exc_info=result)
            self._sessions.fail(
                session, RequestError(Fault.DECODE_FAILED, "request", "internal error; see the server's log")
            )

    def _order(self, session: Session) -> tuple[bool, int, int]:
        background = is_background(session.request.priority, session.requested_at, self._now())
        return background, self._turns.last(session.caller.tenant), session.id

    def _prepare(
        self,
        requests: Sequence[Generate],
        tenant: str,
        wanted: Callable[[], bool],
        generated: Sequence[int],
        begun: Resumed | None,
    ) -> list[Ready]:
        """Prepare all choices of a request, on the preparing thread. ``generated``: the tokens of the only request;
        ``begun``: where its text is made again."""
        (request, *others) = requests
        if self._filter is not None:
            self._filter.check_prompt("\n".join(self._prompt_texts(request)))
        first = self._engine.prepare(request, tenant, wanted, generated)
        choices = [first, *(self._engine.prepare_choice(other, first) for other in others)]
        texts = [self._text(one, prepared) for one, prepared in zip(requests, choices, strict=True)]
        if begun is not None:
            catch_up(texts[0], begun)
        repetitions: list[Repetition | None] = [None] * len(choices)
        if self._speculates:
            text_from = first.spans[-1].end if first.spans else 0
            index = PromptIndex(first.tokens[text_from:])
            repetitions = [Repetition(index, generated) for _ in choices]
        return list(zip(choices, repetitions, texts, strict=True))

    def _text(self, request: Generate, prepared: Prepared) -> AnswerText:
        filtered = None if self._filter is None else self._filter.stream()
        return text_of(request, prepared, self._engine, filtered)

    def _prompt_texts(self, request: Generate) -> Iterator[str]:
        """All texts that the client sends to the model."""
        if request.context:
            yield self._text_of(TokenIds(request.context))
        match request.prompt:
            case str() as text:
                yield text
            case TokenIds() as tokens:
                yield self._text_of(tokens)
            case MixedText(parts):
                yield "".join(part if isinstance(part, str) else self._text_of(part) for part in parts)
            case Infill() as gap:
                yield from (gap.prefix + gap.beginning, gap.suffix, *(text for other in gap.others for text in other))
            case turns:
                for turn in turns:
                    yield turn.content
                    yield from (call.arguments for call in turn.tool_calls)
        for tool in request.tools:
            yield from (tool.description, tool.parameters)

    def _text_of(self, tokens: TokenIds) -> str:
        answer = self._engine.answer(Detokenize(tokens.ids))
        assert isinstance(answer, Detokenized)
        return answer.text


def _has_media(session: Session) -> bool:
    return session.request.has_media


def _is_other_choice(session: Session, first: Session) -> bool:
    """Whether both are choices of one request, which differ in id and seed only."""
    one, other = session.request, first.request
    if session.generated or first.generated:
        return False
    if one.prompt is not other.prompt or session.caller.tenant != first.caller.tenant:
        return False
    return replace(one, id=other.id, sampling=replace(one.sampling, seed=other.sampling.seed)) == other


def _spans_ahead(session: Session) -> Sequence[Span]:
    """The media of a prompt that is prepared but not started."""
    if session.prepared is None or session.started_at is not None or session.holds:
        return ()
    return session.prepared.spans


def lacks_media(session: Session) -> bool:
    """Whether it can't be prepared again, since its attachments were too large to be kept."""
    return session.before is not None and bool(session.before.spans) and not _has_media(session)
