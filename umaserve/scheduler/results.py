"""Results of ticks: sessions begin, go on with their tokens, end, or fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import CacheMiss, FinishReason, Logprobs, Placed, Prefilled, Prefilling, PromptScores, Token
from umaserve.core.metrics import ServingMetrics
from umaserve.core.queries import Detokenize, Detokenized
from umaserve.scheduler.observer import log_difference, observe_start
from umaserve.scheduler.planner import Planner
from umaserve.scheduler.work import Work
from umaserve.sessions.cache_miss import cache_miss
from umaserve.sessions.engine_api import Engine, EngineLost, Outcome, Run, Scoring, TickResult
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.session import Session
from umaserve.sessions.states import State


class Results:
    """Applies the tick results of one engine to sessions. Only this class adds tokens to answers."""

    def __init__(
        self,
        sessions: SessionManager,
        engine: Engine,
        planning: Planner,
        metrics: ServingMetrics,
        clock: Callable[[], float],
        *,
        shared_prefixes: bool,
    ) -> None:
        self.tokens_generated = 0
        self._sessions = sessions
        self._engine = engine
        self._planning = planning
        self._metrics = metrics
        self._now = clock
        self._shares_prefixes = shared_prefixes

    def started(self, session: Session) -> None:
        """Begin a session that has got a slot, unless it began earlier."""
        if session.started_at is None:
            session.started_at = self._now()
            session.reused = session.computed
            self._sessions.put(session, Placed(self._cache_miss(session)))
            self._metrics.prefix_reused_tokens += session.reused
            observe_start(self._metrics, session, session.started_at - session.requested_at)
            self._tell_progress(session)
            if session.request.prompt_logprobs is not None:
                assert session.prepared is not None
                self._sessions.put(session, PromptScores((), session.prepared.first))
                self._end_without_answer(session)

    def _cache_miss(self, session: Session) -> CacheMiss | None:
        found, prepared = session.difference, session.prepared
        if found is None or prepared is None:
            return None
        log_difference(session, found)
        tells_known = not (self._shares_prefixes or session.caller.several)
        try:
            return cache_miss(found, prepared.tokens, self._text_of, tells_known=tells_known)
        except EngineLost:
            return None

    def _text_of(self, tokens: Sequence[int]) -> str:
        answer = self._engine.answer(Detokenize(tuple(tokens)))
        assert isinstance(answer, Detokenized)
        return answer.text

    # -- a finished tick -----------------------------------------------------------------------------------------

    def accept(self, work: Work, result: TickResult) -> None:
        """Give the sessions of ``work`` what the tick has made; one whose answer can't go on fails alone."""
        match result.outcome:
            case Outcome.NO_CELLS:
                # The cells were promised, so this is rare (a cache that needs consecutive ones, say). The youngest
                # request fails; the others lose nothing but this tick.
                youngest = max(work.sessions, key=lambda session: session.requested_at)
                if youngest.running:
                    error = RequestError(Fault.MEMORY_PRESSURE, "request", "the KV cache is full; try again later")
                    self._sessions.fail(youngest, error)
            case Outcome.CACHE_LOST:
                self._planning.forget_lost(work)
            case Outcome.FAILED:
                self.fail_all(work.sessions)
            case Outcome.DONE:
                self._planning.moved(work, result.moving_s)
                now = self._now()
                for index, (session, run) in enumerate(zip(work.sessions, work.tick.runs, strict=True)):
                    try:
                        late = index in result.late
                        self._advance(session, run, result.tokens[index], result.logprobs.get(index), now, late=late)
                        if index in result.failed:
                            raise result.failed[index]
                    except RequestError as error:
                        self._sessions.fail(session, error)
                for draft, draft_tokens in zip(work.tick.drafts, result.drafted, strict=True):
                    right = max(0, len(result.tokens[draft.run]) - 1)
                    self._count_draft_tokens(work.sessions[draft.run], draft_tokens, right, drafted=True)
                self._planning.draft_costs.drafted(sum(result.drafted), result.drafting_s)

    def fail_all(self, sessions: list[Session]) -> None:
        for session in sessions:
            session.computed = 0  # Its cells are in an unknown state: none are reused.
            if session.running:
                self._sessions.fail(session, RequestError(Fault.DECODE_FAILED, "decode", "llama.cpp failed"))

    def _advance(
        self,
        session: Session,
        run: Run,
        tokens: Sequence[int],
        logprobs: Sequence[Logprobs] | None,
        now: float,
        *,
        late: bool,
    ) -> None:
        if session.state is State.PREFILL:
            if session.generated:
                self._metrics.recomputed_tokens += len(run.tokens)
            else:
                self._metrics.prompt_tokens += len(run.tokens)
        # Of its draft tokens, the sequence holds the accepted ones: all sampled tokens but the last, which may be late.
        accepted = len(tokens) if late else max(0, len(tokens) - 1)
        session.computed += len(run.tokens) - run.draft_tokens + accepted
        if session.computed > self._metrics.longest_sequence:
            self._metrics.longest_sequence = session.computed
        if session.state is State.PREFILL:
            self._planning.prefilled(session)
            self._tell_progress(session)
            if isinstance(run.logprobs, Scoring):
                if logprobs is None or len(logprobs) != len(run.tokens):
                    raise ValueError("the engine has not returned the requested log-probabilities")
                session.scored += len(logprobs)
                self._sessions.put(session, PromptScores(logprobs))
                self._end_without_answer(session)
            if late:
                self._sessions.prompt_done(session)
        if tokens and run.draft_tokens:
            self._count_draft_tokens(session, run.draft_tokens, accepted, drafted=False)
        elif tokens and session.draft_tokens and session.repetition is not None:
            # Whether it would have been right is known without a row for it.
            session.repetition.acceptance.observe(1, int(tokens[0] == session.draft_tokens[0]))
        for index, token in enumerate(tokens):
            if session.running:
                self._take(session, token, None if logprobs is None else logprobs[index], now)

    def _end_without_answer(self, session: Session) -> None:
        """End a request for its prompt's log-probabilities alone, if it has all of them."""
        assert session.prepared is not None
        if not session.prepared.max_tokens and not session.to_score:
            self._sessions.finish(session, FinishReason.LENGTH)

    def _tell_progress(self, session: Session) -> None:
        request, prepared, started_at = session.request, session.prepared, session.started_at
        if session.generated or not request.wants_progress:
            return
        assert prepared is not None
        assert started_at is not None
        elapsed_s = self._now() - started_at
        self._sessions.put(session, Prefilling(len(prepared.tokens), session.reused, session.computed, elapsed_s))

    def _count_draft_tokens(self, session: Session, draft_tokens: int, right: int, *, drafted: bool) -> None:
        self._metrics.drafts += draft_tokens > 0
        self._metrics.draft_tokens += draft_tokens
        self._metrics.draft_tokens_accepted += right
        if drafted:
            session.drafting.observe(draft_tokens, right)
        elif session.repetition is not None:
            session.repetition.acceptance.observe(draft_tokens, right)

    def _take(self, session: Session, token: int, logprobs: Logprobs | None, now: float) -> None:
        """Add a sampled token to the answer, and end the answer if it is the last."""
        if session.state is State.PREFILL:
            self._sessions.prompt_done(session)
        prepared, text = session.prepared, session.text
        assert prepared is not None
        assert text is not None
        if not session.generated:
            started_s = session.timing(now).started_s
            self._sessions.put(session, Prefilled(len(prepared.tokens), session.reused, started_s, prepared.text))
        if token in self._engine.end_tokens or token in session.request.sampling.stop_token_ids:
            if logprobs is not None and session.request.prompt_logprobs is not None:
                # Who asks for both counts on one for each token that was sampled.
                self._sessions.put(session, Token("", token, logprobs, sampled=False))
            self._sessions.finish(session, FinishReason.STOP)
            return
        self._metrics.tokens_generated += 1
        self.tokens_generated += 1
        session.generated.append(token)
        if session.repetition is not None:
            session.repetition.append(token)
        said, ended = text.push(token)
        if ended is None and len(session.generated) >= prepared.max_tokens:
            ended = FinishReason.LENGTH
            # Sent with this token: an output of its own would count as another token.
            rest, filtered = text.finish()
            said = said.and_then(rest)
            ended = FinishReason.CONTENT_FILTER if filtered else ended
        since = session.requested_at if session.last_made_at is None else session.last_made_at
        session.last_made_at = now
        if session.first_made_at is None:
            session.first_made_at = now
        times = now - session.requested_at, now - since
        self._sessions.put(
            session, Token(said.text, token, logprobs, *times, thoughts=said.thoughts, answer=said.answer)
        )
        if ended is not None:
            self._sessions.finish(session, ended)
