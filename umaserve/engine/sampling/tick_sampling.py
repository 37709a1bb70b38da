"""Samples the tokens after the runs of a tick, and takes those that slow grammars have left from ticks before."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from umaserve.core.events import Logprobs
from umaserve.engine.llama.model import Model
from umaserve.engine.sampling.candidates import Candidates, Logits
from umaserve.engine.sampling.logprobs import Scores, scores_after, scores_of_prompt
from umaserve.engine.sampling.sampler import Sampler
from umaserve.engine.sampling.steps import EndedStep, Sampled, Step, StepThread
from umaserve.sessions.engine_api import Run, Scoring

MIN_WAIT_S = 0.005
"""Least seconds to wait for the grammars of a tick's streams; as long as the decode took where that is more: none of
them makes a tick more than twice as long."""
IDLE_WAIT_S = 0.02
"""Seconds to wait for the grammars where no other stream runs."""


class TickSampling:
    """Samples the tokens of a tick: ``begin`` after each decode, ``wait`` after the last, then ``take`` each run's
    tokens."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._candidates = Candidates(model.n_vocab)
        self._thread = StepThread(model.n_vocab)
        self._of_prompts: dict[int, list[Logprobs]] = {}
        """Log-probabilities of prompts that are not taken yet, by slot."""

    def begin(self, runs: Sequence[Run], logits: Sequence[Logits]) -> list[Step]:
        """Sample what no grammar holds, and begin with the rest; returns the steps of that. ``logits``: a row for each
        run with a sampler, and one more for each of its draft tokens; one for each token of a ``Scoring``."""
        rows = iter(logits)
        held: list[tuple[bool, Step]] = []
        for run in runs:
            if run.sampler is None:
                if isinstance(run.logprobs, Scoring):
                    of_run = [next(rows) for _ in run.tokens]
                    written = self._model.written
                    self._of_prompts[run.slot] = scores_of_prompt(of_run, run.tokens, run.logprobs, written)
                continue
            sampler = _sampler_of(run)
            of_run = [next(rows) for _ in range(1 + run.draft_tokens)]
            # It may have lost its slot while a step was late: the token of that step comes next.
            if sampler.step is None:
                if sampler.constraint is None:
                    sampler.step = self._sample_at_once(run, of_run)
                    continue
                # The next decode overwrites the rows.
                copies = [row.copy() for row in of_run]
                sample, is_last = functools.partial(self._sample, run), functools.partial(self._is_last, run)
                sampler.step = step = Step(copies, sample, is_last, sampler.constraint.field)
                held.append((sampler.was_late, step))
        if not held:
            return []
        held.sort(key=lambda one: one[0])
        steps = [step for _was_late, step in held]
        self._thread.begin(steps)
        return steps

    def wait(self, begun: Sequence[Step], decode_s: float) -> None:
        """Wait for the steps that this tick has begun; ``decode_s``: how long its decodes took."""
        if begun:
            self._thread.wait(begun, max(MIN_WAIT_S, decode_s))

    def wait_for_late(self, runs: Sequence[Run]) -> None:
        """Wait for the steps that ticks before have begun; this one has decoded nothing."""
        steps = (_sampler_of(run).step for run in runs if run.sampler is not None)
        self._thread.wait([step for step in steps if isinstance(step, Step)], IDLE_WAIT_S)

    def take(self, run: Run) -> tuple[list[Sampled], bool]:
        """Take the tokens of ``run``, as ``Step.take``: the accepted draft tokens and, if that is all, the token after
        them."""
        sampler = _sampler_of(run)
        assert sampler.step is not None
        sampled, ended = sampler.step.take()
        if ended:
            sampler.step = None
        else:
            sampler.was_late = True
        return sampled, ended

    def take_prompt_scores(self, run: Run) -> list[Logprobs]:
        """Take the log-probabilities that a ``Scoring`` has asked for."""
        return self._of_prompts.pop(run.slot)

    def close(self) -> None:
        self._thread.close()

    def _sample_at_once(self, run: Run, rows: Sequence[Logits]) -> EndedStep:
        sampled: list[Sampled] = []
        try:
            for row, logits in enumerate(rows):
                sampled.append(self._sample(run, logits, self._candidates))
                if self._is_last(run, row, sampled[-1][0]):
                    break
        except Exception as error:
            return EndedStep([], error)
        return EndedStep(sampled, None)

    def _sample(self, run: Run, logits: Logits, candidates: Candidates) -> Sampled:
        """The next token; raises ``RequestError`` as ``Sampler.sample``."""
        sampler = _sampler_of(run)
        before = None if run.logprobs is None or sampler.scores_after else Scores(logits)
        token = sampler.sample(logits, candidates)
        if run.logprobs is None:
            return token, None
        assert not isinstance(run.logprobs, Scoring)
        if before is not None:
            return token, before.report(token, run.logprobs, self._model.written)
        left = candidates.only(token) if sampler.left is None else sampler.left
        return token, scores_after(left, token, run.logprobs, self._model.written)

    def _is_last(self, run: Run, row: int, token: int) -> bool:
        """Whether ``token``, sampled from this row of the run, is no accepted draft token."""
        draft = len(run.tokens) - run.draft_tokens + row
        return token in self._model.end_tokens or row == run.draft_tokens or token != run.tokens[draft]


def _sampler_of(run: Run) -> Sampler:
    assert isinstance(run.sampler, Sampler)
    return run.sampler
