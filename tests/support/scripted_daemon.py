"""The real daemon with an engine whose answers a test writes: all but the model is as it is for users.

As a program it takes the daemon's flags, and its script from the folder ``SCRIPT``; for tests, ``Script`` is that
folder. The prompt is rendered by a chat template with tools, and calls are written as this template tells, so that the
daemon reads them as it reads a model's.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from umaserve.chat_format.written_calls import written
from umaserve.commands.parser import loaded
from umaserve.core.errors import ContextExceeded, Fault, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.queries import (
    Answer,
    ApplyTemplate,
    Counted,
    CountPrompt,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Prompted,
    Query,
)
from umaserve.core.requests import ChatTurn, Generate, ToolCall
from umaserve.daemon.server import Server
from umaserve.engine.template.chat_template import ChatTemplate
from umaserve.remote.process import End
from umaserve.sessions.engine_api import (
    Capacity,
    Chunk,
    Listing,
    NamedFile,
    Outcome,
    Prepared,
    Tick,
    TickResult,
    YieldPoint,
)
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.settings.models import Catalogue, ModelSpec

TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Calls in the form of Hermes, as many models write them."""
END = 256
PIECES = [*(bytes([token]) for token in range(END)), b""]
"""An answer's tokens are its bytes."""
TOKEN_BYTES = 3
"""Bytes of a token of a prompt."""
PROMPT = 1 << 8 * TOKEN_BYTES
"""The bit that tells a prompt's tokens from an answer's."""
UNSCRIPTED = "Fine."
"""The answer to a request that the script has none for: agents have titles and summaries made beside their work."""
SLOW_TOKEN_S = 0.02

Call = tuple[str, dict[str, Any]]
"""A tool's name and its arguments."""


class Script:
    """The answers that requests get, in turn, and what the engine was asked."""

    def __init__(self, folder: Path) -> None:
        self._answers = folder / "answers"
        self._requests = folder / "requests"
        self._answers.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._written = 0

    def add(self, text: str = "", *calls: Call, tools: bool = True, slow: bool = False, overflow: bool = False) -> None:
        """One more answer: ``text``, then all ``calls``. It is for a request with ``tools``, or for one without.

        A ``slow`` one has more tokens than anybody waits for. ``overflow``: the prompt is refused as too long.
        """
        answer = {"text": text, "calls": calls, "slow": slow, "overflow": overflow}
        self._written += 1
        coming = self._answers / "coming"
        coming.write_text(json.dumps(answer))
        coming.rename(self._answers / f"{self._written:04}.{_kind(tools)}")

    def clear(self) -> None:
        """Forget answers that nobody has had, and all requests."""
        for path in self._answers.glob("*.*"):
            path.unlink()
        self._requests.unlink(missing_ok=True)

    @property
    def left(self) -> int:
        """How many answers nobody has had."""
        return len([*self._answers.glob("*.*")])

    def take(self, *, tools: bool) -> dict[str, Any]:
        """The next answer, for the engine; ``UNSCRIPTED`` where there is none."""
        with self._lock:
            for path in sorted(self._answers.glob(f"*.{_kind(tools)}"))[:1]:
                answer: dict[str, Any] = json.loads(path.read_text())
                path.unlink()
                return answer
        return {"text": UNSCRIPTED, "calls": [], "slow": False, "overflow": False}

    def record(self, request: Generate, prompt_tokens: int) -> None:
        """Note a request, for the test."""
        assert isinstance(request.prompt, tuple)
        turns = [dataclasses.asdict(turn) for turn in request.prompt]
        told = {"turns": turns, "tools": [tool.name for tool in request.tools], "prompt_tokens": prompt_tokens}
        with self._lock, self._requests.open("a") as file:
            file.write(json.dumps(told) + "\n")

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What was asked since the last ``clear``: turns, names of tools, and how many tokens that are."""
        if not self._requests.exists():
            return []
        return [json.loads(line) for line in self._requests.read_text().splitlines()]


def _kind(tools: bool) -> str:
    return "tools" if tools else "text"


class Answering:
    """Implements ``sessions.engine_api.Sampler``: the bytes of one answer."""

    def __init__(self, answer: bytes, prompt_tokens: int, *, slow: bool) -> None:
        self._tokens = [*answer, END]
        self._prompt_tokens = prompt_tokens
        self.slow = slow

    def token(self, position: int) -> int:
        """The token at ``position`` of the sequence."""
        index = position - self._prompt_tokens
        return ord("~") if self.slow and index >= len(self._tokens) - 1 else self._tokens[index]


class ScriptedEngine:
    """Implements ``sessions.engine_api.Engine`` by a script."""

    name = "scripted"
    run_ahead = None
    end_tokens = frozenset({END})
    pieces: Sequence[bytes] = PIECES

    def __init__(self, script: Script, config: Config) -> None:
        self._script = script
        self._template = ChatTemplate(TEMPLATE, "<s>", "<|im_end|>")
        self.capacity = Capacity(
            slots=config.parallel,
            cells=config.n_ctx * config.parallel,
            sequence_tokens=config.n_ctx,
            batch_tokens=4096,
            sequences=2 * config.parallel,
            cached_cells=config.n_ctx * config.parallel,
        )
        self.info = ModelInfo(
            name=self.name,
            architecture="none",
            quantization="none",
            parameters=1,
            size_bytes=1,
            context_tokens=config.n_ctx,
            training_tokens=config.n_ctx,
            vocabulary=len(PIECES),
            embedding_length=1,
            chat_template=TEMPLATE,
            bos="<s>",
            eos="<|im_end|>",
            tool_form=self._template.tool_form,
            parallel=config.parallel,
        )

    def prepare(
        self,
        request: Generate,
        tenant: str = "",
        wanted: Callable[[], bool] = lambda: True,
        generated: Sequence[int] = (),
    ) -> Prepared:
        tokens = self._tokens(request)
        self._script.record(request, len(tokens))
        room = self.capacity.sequence_tokens - len(tokens)
        answer = self._script.take(tools=bool(request.tools))
        if room < 1 or answer["overflow"]:
            raise ContextExceeded(max(len(tokens), self.capacity.sequence_tokens), self.capacity.sequence_tokens)
        calls = [ToolCall(f"call{n:05}", name, json.dumps(given)) for n, (name, given) in enumerate(answer["calls"])]
        text = answer["text"] + (written(self.info.tool_form, calls) if calls else "")
        sampler = Answering(text.encode(), len(tokens), slow=answer["slow"])
        return Prepared(tokens, min(request.max_tokens or room, room), sampler)

    def _tokens(self, request: Generate) -> Sequence[int]:
        assert isinstance(request.prompt, tuple), "a script answers conversations"
        return tokens(self._rendered(request.prompt, request))

    def _rendered(self, turns: Sequence[ChatTurn], request: Generate) -> str:
        return self._template.render(turns, request.tools)

    def prepare_choice(self, request: Generate, first: Prepared) -> Prepared:
        return self.prepare(request)

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        return prepared

    def answer(self, query: Query) -> Answer:
        match query:
            case Detokenize(ids):
                return Detokenized(text_of(ids))
            case CountPrompt(request):
                return Counted(len(self._tokens(request)))
            case ApplyTemplate(request):
                assert isinstance(request.prompt, tuple)
                return Prompted(self._rendered(request.prompt, request))
        raise RequestError(Fault.NOT_SUPPORTED, type(query).__name__, "a script has no vocabulary")

    def encode(self, chunk: Chunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        raise AssertionError("a script takes no media")

    def shed(self) -> None:
        """There is nothing."""

    def embed(self, query: Embed, pause: YieldPoint) -> Embedded:
        raise RequestError(Fault.NOT_SUPPORTED, "model", "a script makes no embeddings")

    def run(self, tick: Tick) -> TickResult:
        sampled = []
        for run in tick.runs:
            sampler = run.sampler
            assert sampler is None or isinstance(sampler, Answering)
            sampled.append(() if sampler is None else (sampler.token(run.start + len(run.tokens)),))
            if sampler is not None and sampler.slow:
                time.sleep(SLOW_TOKEN_S)
        return TickResult(Outcome.DONE, sampled, 1e-3)

    def look(self) -> Listing:
        raise AssertionError("a script keeps nothing")

    def keep(self, *_sequence: object) -> str | None:
        raise AssertionError("a script keeps nothing")

    def fetch(self, *_sequence: object) -> bool:
        raise AssertionError("a script keeps nothing")

    def give_name(self, *_names: object) -> int:
        raise AssertionError("a script keeps nothing")

    def take_back(self, *_name: object) -> NamedFile:
        raise AssertionError("a script keeps nothing")

    def close(self) -> None:
        """Nothing to free."""


def tokens(text: str) -> list[int]:
    """Those of a prompt: none is one of an answer."""
    data = text.encode()
    padded = data.ljust(math.ceil(len(data) / TOKEN_BYTES) * TOKEN_BYTES, b"\0")
    parts = np.frombuffer(padded, np.uint8).reshape(-1, TOKEN_BYTES).astype(int)
    ids: list[int] = (parts @ [1 << 16, 1 << 8, 1] | PROMPT).tolist()
    return ids


def text_of(ids: Sequence[int]) -> str:
    """The text of ``tokens``, and of an answer's."""
    data = b"".join((i ^ PROMPT).to_bytes(TOKEN_BYTES, "big") if i & PROMPT else PIECES[i] for i in ids)
    return data.rstrip(b"\0").decode(errors="replace")


class ScriptedHandle:
    """Implements ``models.engine_supervisor.EngineHandle`` for it, in this process."""

    life = None
    run_ahead = None
    pid = os.getpid()

    def __init__(self, script: Script) -> None:
        self._script = script

    def load(self, config: Config, *_how: object) -> ScriptedEngine:
        return ScriptedEngine(self._script, config)

    def kill(self) -> None:
        raise AssertionError("a script never hangs")

    def end(self) -> End:
        raise AssertionError("a script ends with this process")

    def close(self) -> None:
        """Nothing to free."""


if __name__ == "__main__":
    found = loaded("scripted_daemon", "[FLAGS]", "", SETTINGS, sys.argv[1:])
    assert found is not None
    told = Script(Path(os.environ["SCRIPT"]))
    sys.exit(Server(Catalogue(ModelSpec("scripted", found.config)), lambda _spec: ScriptedHandle(told)).run())
