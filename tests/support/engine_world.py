"""A scheduler with the real engine on the test's own thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from standin import SteppedWorker

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, FinishReason, Output, Token
from umaserve.core.requests import ChatTurn, Generate, Sampling, TokenIds
from umaserve.engine.engine import load
from umaserve.scheduler.scheduler import Scheduler
from umaserve.sessions.caller import Caller
from umaserve.sessions.manager import SessionManager
from umaserve.sessions.targets import Targets
from umaserve.settings.daemon import Config

CALLER = Caller("uds", "uid:1000")
SETTINGS: dict[str, Any] = {
    "n_ctx": 2048,
    "parallel": 4,
    "threads": 1,
    "weights": "as-is",
    "n_batch": 256,
    "n_ubatch": 256,
}
GREEDY = Sampling(temperature=0.0)

Prompt = str | Sequence[int] | tuple[ChatTurn, ...]


def no_pause() -> None:
    """For a lengthy job that nothing waits for."""


class Answer:
    """What came of one request."""

    def __init__(self) -> None:
        self.tokens: Sequence[int] = ()
        self.logprobs: list[float] = []
        """Of its tokens, if the request asks for them."""
        self.prompt_tokens = 0
        self.reused = 0
        self.end: FinishReason | RequestError | None = None
        self.outputs: list[Output | RequestError] = []


class EngineWorld:
    def __init__(self, model: str, chat_template: str | None = None, **settings: Any) -> None:
        config = Config(model=model, **(SETTINGS | settings))
        self.engine = load(config, lambda _fraction: True, chat_template)
        self._compute, self._preparing = SteppedWorker(), SteppedWorker()
        self._sessions = SessionManager(clock=time.monotonic)
        self.scheduler = Scheduler(
            self._sessions,
            self.engine,
            self._compute,
            self._preparing,
            self._preparing,
            Targets(1.0, 0.1),
            time.monotonic,
            draft_tokens=config.speculation,
        )
        self._asked = 0

    def close(self) -> None:
        self.engine.close()

    def ask(self, prompt: Prompt, max_tokens: int = 12, **fields: Any) -> Answer:
        """Start a request for a greedy answer."""
        answer = Answer()

        def receive(output: Output | RequestError) -> None:
            answer.outputs.append(output)
            if isinstance(output, Token) and output.logprobs is not None:
                answer.logprobs.append(output.logprobs.chosen.logprob)
            if isinstance(output, Finished | RequestError):
                answer.end = output if isinstance(output, RequestError) else output.reason
                answer.tokens, answer.reused = list(session.generated), session.reused
                answer.prompt_tokens = output.usage.prompt_tokens if isinstance(output, Finished) else 0

        self._asked += 1
        request = Generate(f"r{self._asked}", _given(prompt), max_tokens, **{"sampling": GREEDY, **fields})
        session = self._sessions.start(request, receive, CALLER, time.monotonic())
        return answer

    def turn(self) -> None:
        self._preparing.step()
        self.scheduler.pump()
        self._compute.step()
        self.scheduler.deliver()

    def finish(self) -> None:
        """Turn until all that was asked is answered and saved."""
        for _ in range(5000):
            self.turn()
            if self.scheduler.idle and not self._compute.jobs:
                return
        raise AssertionError("it never came to an end")

    def answer(self, prompt: Prompt, max_tokens: int = 12, **fields: Any) -> Answer:
        """Ask alone, and wait for the end."""
        answer = self.ask(prompt, max_tokens, **fields)
        self.finish()
        return answer


def _given(prompt: Prompt) -> str | tuple[ChatTurn, ...] | TokenIds:
    if isinstance(prompt, str):
        return prompt
    turns = tuple(one for one in prompt if isinstance(one, ChatTurn))
    return turns or TokenIds(tuple(one for one in prompt if not isinstance(one, ChatTurn)))
