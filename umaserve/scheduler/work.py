"""A tick of a plan: what is decoded of each session that the plan names."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from umaserve.scheduler.policy.snapshot import Plan, Snapshot
from umaserve.sessions.decodes import decodes
from umaserve.sessions.engine_api import Draft, Prepared, Run, Scoring, Span, Tick
from umaserve.sessions.kv_operations import Divide, KVOperation
from umaserve.sessions.session import Session

TO_COME = (-1,)
"""The tokens of a run whose only token is sampled by the tick before."""


@dataclass(frozen=True, slots=True)
class Work:
    """A tick, with the session of each of its runs."""

    tick: Tick
    sessions: list[Session]
    decode_rows: int
    prefill_rows: int
    scored_rows: int
    """How many of the prefill rows give log-probabilities of their prompt."""
    decodes: int
    """How many decodes it takes."""
    cached: int
    """KV cells that a row attends to, on average, before it."""
    budget_s: float | None
    """The shortest target time between tokens of its streams; ``None`` without streams."""
    throttled: bool
    """Whether there was more to prefill than the tick's time allowed."""

    @property
    def aside(self) -> bool:
        """Whether it needs no turn of the compute thread: it divides the cells, which takes a new context, and computes
        nothing."""
        return not self.tick.runs and Divide in map(type, self.tick.kv_operations)


def make_work(
    snapshot: Snapshot,
    plan: Plan,
    streams: Sequence[tuple[Session, int]],
    prompts: Sequence[tuple[Session, int]],
    kv_operations: Sequence[KVOperation],
    threads: int,
    *,
    number: int,
    prompts_apart: bool,
    scored_rows: int = 0,
) -> Work:
    """The tick of ``plan``, which was made of ``snapshot``. ``streams``: each with its number of draft tokens;
    ``prompts``: each, in its slot, with the end of what is computed of it, ``scored_rows`` with log-probabilities.
    ``number``: as ``Tick.number``."""
    sessions: list[Session] = []
    runs: list[Run] = []
    drafts: list[Draft] = []
    for session, draft_tokens in streams:
        run, wants = _of_stream(session, draft_tokens)
        if wants:
            drafts.append(Draft(len(runs), sequence(session), wants))
        sessions.append(session)
        runs.append(run)
    for session, end in prompts:
        pieces = _of_prompt(session, end)
        sessions += [session] * len(pieces)
        runs += pieces
    decoding = {id_ for id_, _ in plan.decode}
    return Work(
        tick=Tick(kv_operations, runs, threads, plan.adapters, drafts, number),
        sessions=sessions,
        decode_rows=sum([1 + draft_tokens for session, draft_tokens in streams if not session.is_late]),
        prefill_rows=sum([len(run.tokens) for run in runs[len(streams) :]]),
        scored_rows=scored_rows,
        decodes=_decodes(runs) if prompts_apart else 1,
        cached=_attended(snapshot, runs) if prompts_apart else snapshot.cached,
        budget_s=min([stream.target_tbt_s for stream in snapshot.streams if stream.id in decoding], default=None),
        throttled=plan.throttled,
    )


def moving(kv_operations: Sequence[KVOperation], threads: int) -> Work:
    """A tick without runs."""
    return Work(Tick(kv_operations, [], threads), [], 0, 0, 0, 0, 0, None, throttled=False)


def next_work(work: Work) -> Work:
    """The tick after ``work``, which decodes streams only: each with the token that ``work`` samples."""
    before = work.tick
    runs = [Run(run.slot, run.start + 1, TO_COME, run.sampler, run.logprobs) for run in before.runs]
    tick = Tick((), runs, before.threads, before.adapters, number=before.number + 1)
    return replace(work, tick=tick, cached=work.cached + len(runs))


def sequence(session: Session) -> Sequence[int]:
    """The tokens to compute: the prompt, and the generated ones, which a preempted session computes again."""
    assert session.prepared is not None
    prompt = session.prepared.tokens
    return [*prompt, *session.generated] if session.generated else prompt


def _decodes(runs: Sequence[Run]) -> int:
    """Count the decodes of a tick: those of text, and one of each run of media."""
    return len(decodes(runs, prompts_apart=True)) + sum(run.span is not None for run in runs)


def _attended(snapshot: Snapshot, runs: Sequence[Run]) -> int:
    """The cells that a row attends to, on average: in a decode of its own, a prompt's row only to those of the
    prompt."""
    prompts = _prompts(runs)
    if not prompts:
        return snapshot.cached
    own = sum([len(run.tokens) * run.start for run in prompts])
    apart, rows = sum([len(run.tokens) for run in prompts]), sum([len(run.tokens) for run in runs])
    return (own + (rows - apart) * snapshot.cached) // rows


def _prompts(runs: Sequence[Run]) -> list[Run]:
    """Runs of prompts: those with more than a token and its draft tokens, which are not in the decode of the streams on
    a CPU."""
    return [run for run in runs if len(run.tokens) > 1 + run.draft_tokens]


def _of_stream(session: Session, n_draft_tokens: int) -> tuple[Run, int]:
    """The run, and the number of draft tokens that the draft model is to add."""
    prepared = session.prepared
    assert prepared is not None
    assert session.slot is not None
    draft_tokens = session.draft_tokens[:n_draft_tokens]
    tokens = [] if session.is_late else [session.generated[-1], *draft_tokens]
    run = Run(session.slot, session.computed, tokens, prepared.sampler, prepared.logprobs, len(draft_tokens))
    return run, n_draft_tokens - len(draft_tokens)


def _of_prompt(session: Session, last: int) -> list[Run]:
    """Runs up to ``last``: one of text, or one of media and one of the text behind them, since a tick decodes media
    before text. Empty if media that the lookup found cached must be encoded after all."""
    prepared = session.prepared
    assert prepared is not None
    assert session.slot is not None
    runs: list[Run] = []
    start = session.computed
    while start < last:
        end, span = _piece(prepared, start, last)
        if span is not None and (runs or not span.chunk.encoded):
            break
        tokens, sampler = sequence(session)[start:end], None
        logprobs: int | Scoring | None = None
        if end == session.length:
            sampler, logprobs = prepared.sampler, prepared.logprobs
        elif session.to_score and session.scored == start + 1:
            assert session.request.prompt_logprobs is not None
            logprobs = Scoring(prepared.tokens[end], session.request.prompt_logprobs)
        runs.append(Run(session.slot, start, tokens, sampler, logprobs, span=span))
        start = end
        if span is None:
            break
    return runs


def _piece(prepared: Prepared, start: int, last: int) -> tuple[int, Span | None]:
    """The end of the run that begins at ``start``, at most ``last``, and the span it lies in. A ``whole`` span may end
    behind ``last``."""
    for span in prepared.spans[bisect.bisect_right(prepared.spans, start, key=lambda span: span.end) :]:
        if start < span.start:
            return min(last, span.start), None
        return span.end if span.whole else min(last, span.end), span
    return last, None
