"""Stand-ins for the engine, the voice and their threads: as strict as llama.cpp is, and without a model."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Logprobs, ModelInfo, Scored
from umaserve.core.queries import (
    ApplyTemplate,
    Counted,
    CountPrompt,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Pair,
    Prompted,
    Query,
    Tokenize,
    Tokenized,
)
from umaserve.core.requests import ChatTurn, Generate, Infill, MixedText, TokenIds
from umaserve.remote.run_ahead import next_tick
from umaserve.sessions.engine_api import (
    Adapters,
    Capacity,
    Chunk,
    Draft,
    Kept,
    Listing,
    NamedFile,
    Outcome,
    Prepared,
    Run,
    SavedBytes,
    Scoring,
    Span,
    Tick,
    TickResult,
    YieldPoint,
    media_ids,
)
from umaserve.sessions.kv_operations import Copy, Divide, KVOperation, Load, Move, Release, Save, Shed
from umaserve.speech.voice import SpeechError

END = 0
DEFAULT_MAX_TOKENS = 16
SHORT = "?"
"""A prompt that begins so may be answered shorter than its ``max_tokens``, and no other."""
ECHO = "~"
"""An answer to a prompt that begins so mostly repeats what stood ``ECHOED`` tokens before."""
ECHOED = 5
UNKNOWN = -1
"""Stands in a sequence for what a failed decode left there."""
SAVED_BYTES = SavedBytes(3, 2)
MAX_TAKEN_BACK = 8
"""The most tokens of one decode that are removed again."""

# A token is a byte: prompts are their own tokens, and answers are small letters.
PIECES = [bytes([token]) for token in range(256)]


def next_token(sequence: Sequence[int]) -> int:
    """What follows the sequence: different as soon as one token of it is lost, doubled or somebody else's."""
    drawn = zlib.crc32(bytes(sequence) if min(sequence) >= 0 else repr(list(sequence)).encode())
    if sequence[0] == ord(ECHO) and len(sequence) > ECHOED and drawn % 13:
        return sequence[-ECHOED]
    ends = sequence[0] == ord(SHORT) and drawn % 19 == 0
    return END if ends else ord("a") + drawn % 26


def answer(prompt: str, max_tokens: int = DEFAULT_MAX_TOKENS, stop: Sequence[str] = ()) -> str:
    """The text that a request must give, made without a scheduler."""
    sequence = list(prompt.encode())
    text = ""
    for _ in range(max_tokens):
        token = next_token(sequence)
        if token == END:
            break
        sequence.append(token)
        text += chr(token)
        found = [text.rindex(string) for string in stop if text.endswith(string)]
        if found:
            return text[: min(found)]
    return text


def scored(token: int, rank: int = 0) -> Scored:
    """What the stand-in says of a token that is the ``rank``-th likeliest, from 0."""
    return Scored(token, PIECES[token], -0.5 - rank)


def score_of_last(sequence: Sequence[int], alternatives: int) -> Logprobs:
    """What the stand-in says of the last token of a prompt's beginning: another value behind other tokens."""
    drawn = zlib.crc32(bytes(sequence))
    chosen = Scored(sequence[-1], PIECES[sequence[-1]], -1 - drawn % 1000 / 128)
    likeliest = [(drawn + rank) % 256 for rank in range(alternatives)]
    top = tuple(Scored(token, PIECES[token], -rank / 128) for rank, token in enumerate(likeliest))
    return Logprobs(chosen, top, 1 + drawn % 256)


def vector(text: bytes) -> list[float]:
    """The embedding of ``text``: of unit length, and another for another text."""
    angle = zlib.crc32(text) / 2**32
    return [math.cos(angle), math.sin(angle)]


@dataclass(frozen=True, eq=False)
class Cell:
    """One token in the KV cache, which several sequences may share."""

    token: int
    made: object
    """What it was computed with, or for: those of one sequence are alike."""


class StandInMemory:
    """KV cells and host memory, which carry out moves and assert that each makes sense. As in an engine, a capacity
    without kept cells is that of a model whose sequences can't be cut short."""

    def __init__(self, capacity: Capacity) -> None:
        self.sequences: list[list[Cell]] = [[] for _ in range(max(capacity.slots, capacity.sequences))]
        self.saved: dict[tuple[int, int], list[Cell]] = {}
        """By offset and size."""
        self._capacity = capacity
        self._ways = dict(capacity.divisions)
        self._parts = capacity.divisions[0][0] if capacity.divisions else 0

    def tokens(self, slot: int) -> list[int]:
        return [cell.token for cell in self.sequences[slot]]

    def add(self, slot: int, tokens: Sequence[int], made: object) -> None:
        """Compute ``tokens``."""
        self.sequences[slot] += [Cell(token, made) for token in tokens]
        self._check()

    def move(self, kv_operations: Sequence[KVOperation]) -> None:
        for move in kv_operations:
            match move:
                case Release(slot, start):
                    taken_back = len(self.sequences[slot]) - start
                    possible = self._capacity.takes_back and taken_back <= MAX_TAKEN_BACK
                    assert start == 0 or self._capacity.cached_cells or possible, "cut short where no sequence can be"
                    del self.sequences[slot][start:]
                case Copy(source, target, length):
                    assert not self.sequences[target], "copied onto something"
                    assert 0 < length <= len(self.sequences[source]), "copied more than there is"
                    self.sequences[target] = self.sequences[source][:length]
                case Save(slot, offset, size):
                    self._save(self.sequences[slot], offset, size)
                case Load(offset, size, slot):
                    assert not self.sequences[slot], "loaded onto something"
                    made = [Cell(cell.token, cell.made) for cell in self.saved[offset, size]]
                    self.sequences[slot] = made
                case Move(source, target):
                    assert not self.sequences[target], "moved onto something"
                    self.sequences[target], self.sequences[source] = self.sequences[source], []
                case Divide(parts, kept):
                    before = self.sequences
                    self.sequences = [[] for _ in before]
                    for old, new in kept:
                        self.sequences[new] = before[old]
                    self._parts = parts
                case Shed():
                    self.saved.clear()
            self._check()

    def _save(self, sequence: list[Cell], offset: int, size: int) -> None:
        assert size == self._capacity.saved_bytes.of(len(sequence)) > 0, "a place of another size"
        assert 0 <= offset <= offset + size <= self._capacity.host_bytes, "saved outside of the memory"
        self.forget_saved(offset, size)
        self.saved[offset, size] = list(sequence)

    def forget_saved(self, offset: int, size: int) -> None:
        """Something is written there."""
        for begin, length in list(self.saved):
            if begin < offset + size and offset < begin + length:
                del self.saved[begin, length]

    def _check(self) -> None:
        assert len({cell for sequence in self.sequences for cell in sequence}) <= self._capacity.cells, "too many cells"
        assert all(len(sequence) <= self._capacity.sequence_tokens for sequence in self.sequences)
        if self._parts:
            assert not any(self.sequences[self._parts :]), "a sequence without a part"
            assert all(len(sequence) <= self._ways[self._parts] for sequence in self.sequences), "a part is too small"


class StandInChunk:
    """A medium, of which each character of its data is a token; "raise" and "refuse" are what encoding it does."""

    def __init__(self, data: str) -> None:
        self.data = data
        self.encoded = False


class EngineFailure(Exception):
    """What the engine raises when it is told to; the scheduler knows nothing of it."""


@dataclass(frozen=True)
class StandInSampler:
    """Belongs to one sequence: sampling another with it is a mistake."""

    prompt: tuple[int, ...]
    adapters: Adapters = ()


class StandInEngine:
    """Implements ``sessions.engine_api.Engine`` and asserts what the seam promises.

    ``failures`` holds what the next ticks with runs end in: an outcome, an exception, or ``None`` for a tick that
    goes well. A prompt of "raise" makes ``prepare`` raise, one of "refuse" makes it refuse, and so do ``change`` and
    ``embed``.
    """

    run_ahead: StandInRunAhead | None = None

    def __init__(
        self,
        *,
        slots: int = 4,
        cells: int = 400,
        batch_tokens: int = 16,
        sequence_tokens: int = 200,
        sequences: int = 0,
        cached_cells: int = 0,
        host_bytes: int = 0,
        drafts: bool = False,
        parts: int = 0,
        keeps: bool = False,
    ) -> None:
        """``parts``: into how many the cells are divided at the start, or into half as many; 0: never."""
        self.capacity = Capacity(
            slots,
            cells,
            sequence_tokens,
            batch_tokens,
            sequences=max(slots, sequences),
            cached_cells=cached_cells,
            host_bytes=host_bytes,
            max_draft_tokens=batch_tokens if cached_cells else 0,
            takes_back=cached_cells > 0,
            saved_bytes=SAVED_BYTES if host_bytes else SavedBytes(),
            drafts=drafts,
            divisions=[(number, cells // number) for number in (parts, parts // 2) if number],
            keeps=keeps,
            names=keeps,
        )
        self.disk: dict[str, tuple[Kept, list[Cell]]] = {}
        """By name; what a test puts there or takes away is found at the next look."""
        self.broken: set[str] = set()
        """Those that can't be read."""
        self.files: dict[str, tuple[Kept, list[Cell]]] = {}
        """By the names that operators give them."""
        self._told: set[str] = set()
        self.end_tokens = frozenset({END})
        self.pieces = PIECES
        self.memory = StandInMemory(self.capacity)
        self.ticks: list[Tick] = []
        self.result: TickResult | None = None
        """Result of the last of them; ``None`` if it has failed."""
        self.chunks: dict[tuple[str, str], StandInChunk] = {}
        """By tenant and data."""
        self.failures: deque[Outcome | type[EngineFailure] | None] = deque()
        self.slow: Callable[[int], bool] = lambda _slot: False
        """Whether the next token of a slot is late."""
        self._late: list[object] = []
        """Samplers whose token is late."""

    @property
    def info(self) -> ModelInfo:
        return ModelInfo(
            name="stand-in",
            architecture="none",
            quantization="none",
            parameters=0,
            size_bytes=0,
            context_tokens=self.capacity.sequence_tokens,
            training_tokens=self.capacity.sequence_tokens,
            vocabulary=len(PIECES),
            embedding_length=len(vector(b"")),
            chat_template=None,
            bos="",
            eos=PIECES[END].decode(),
            end_tokens=(END,),
        )

    def prepare(
        self,
        request: Generate,
        tenant: str = "",
        wanted: Callable[[], bool] = lambda: True,
        generated: Sequence[int] = (),
    ) -> Prepared:
        tokens = _tokens(request)
        spans: tuple[Span, ...] = ()
        if isinstance(request.prompt, tuple) and any(turn.attachments for turn in request.prompt):
            tokens, spans = self._with_media(request.prompt, tenant)
        max_tokens = self._max_tokens(request, tokens)
        adapters = request.lora or ()
        first = b"" if request.prompt_logprobs is None else PIECES[tokens[0]]
        sampler = StandInSampler(tokens, adapters)
        return Prepared(tokens, max_tokens, sampler, request.logprobs, adapters, spans, first=first)

    def prepare_choice(self, request: Generate, first: Prepared) -> Prepared:
        return dataclasses.replace(first, sampler=StandInSampler(tuple(first.tokens), first.adapters))

    def _with_media(self, turns: Sequence[ChatTurn], tenant: str) -> tuple[tuple[int, ...], tuple[Span, ...]]:
        tokens: list[int] = []
        spans: list[Span] = []
        for turn in turns:
            at = 0
            for attachment in turn.attachments:
                data, start = attachment.media.data, len(tokens) + attachment.at - at
                assert isinstance(data, str)
                tokens += turn.content[at : attachment.at].encode()
                tokens += media_ids(zlib.crc32(data.encode()), len(data))
                chunk = self.chunks.setdefault((tenant, data), StandInChunk(data))
                spans.append(Span(start, start + len(data), chunk, whole=data.startswith("whole")))
                at = attachment.at
            tokens += turn.content[at:].encode()
        return tuple(tokens), tuple(spans)

    def encode(self, chunk: Chunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        assert isinstance(chunk, StandInChunk)
        assert not chunk.encoded, "encoded twice"
        pause()
        if chunk.data == "raise":
            raise EngineFailure("told to")
        if chunk.data == "refuse":
            raise RequestError(Fault.DECODE_FAILED, "messages", "no sense in it")
        chunk.encoded = wanted()

    def shed(self) -> None:
        self.chunks.clear()

    def look(self) -> Listing:
        new = [kept for name, (kept, _cells) in self.disk.items() if name not in self._told]
        gone = [name for name in self._told if name not in self.disk]
        self._told = set(self.disk)
        return Listing(new, gone, len(self.disk))

    def keep(
        self,
        scope: str,
        tokens: Sequence[int],
        offset: int,
        size: int,
        replaced: Sequence[str],
        wanted: Callable[[], bool],
    ) -> str | None:
        if not wanted():
            return None
        cells = list(self.memory.saved.get((offset, size), ()))
        if not wanted():
            return None
        assert [cell.token for cell in cells] == list(tokens), "another sequence was saved there"
        for name in replaced:
            self.disk.pop(name, None)
        name = f"{scope} {tuple(tokens)}"
        self.disk[name] = Kept(name, scope, tuple(tokens)), cells
        self._told.add(name)
        return name

    def fetch(self, name: str, offset: int, size: int, wanted: Callable[[], bool]) -> bool:
        self.memory.forget_saved(offset, size)
        if not wanted() or name not in self.disk or name in self.broken:
            return False
        kept, cells = self.disk[name]
        assert self.capacity.saved_bytes.of(len(kept.tokens)) == size, "a place of another size"
        self.memory.saved[offset, size] = list(cells)
        return True

    def give_name(self, name: str, filename: str) -> int:
        if name not in self.disk:
            raise RequestError(Fault.NOT_FOUND, "filename", "gone")
        self.files[filename] = self.disk[name]
        return len(self.disk[name][1])

    def take_back(self, filename: str) -> NamedFile:
        if filename not in self.files:
            raise RequestError(Fault.NOT_FOUND, "filename", "there is none")
        kept, cells = self.files[filename]
        self.disk[kept.name] = kept, cells
        self._told.add(kept.name)
        return NamedFile(kept, len(cells))

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        assert isinstance(prepared.sampler, StandInSampler)
        assert prepared.sampler.prompt == prepared.tokens
        sequence = list(prepared.tokens)
        for token in generated:
            assert token == next_token(sequence), "changed with another sequence's tokens"
            sequence.append(token)
        _tokens(request)
        max_tokens = self._max_tokens(request, prepared.tokens)
        return dataclasses.replace(prepared, max_tokens=max_tokens)

    def answer(self, query: Query) -> Tokenized | Detokenized | Prompted | Counted:
        match query:
            case Tokenize(text):
                assert isinstance(text, str)
                return Tokenized(list(text.encode()), [PIECES[token] for token in text.encode()])
            case Detokenize(ids):
                if not all(0 <= token < len(PIECES) for token in ids):
                    raise RequestError(Fault.BAD_REQUEST, "tokens", "out of range")
                return Detokenized(bytes(ids).decode(errors="replace"))
            case ApplyTemplate(request):
                assert isinstance(request.prompt, tuple)
                return Prompted("".join(f"<{turn.role}>{turn.content}" for turn in request.prompt))
            case CountPrompt(request):
                return Counted(len(_tokens(request)))
            case Embed():
                raise AssertionError("embeddings are asked of embed")

    def embed(self, query: Embed, pause: YieldPoint) -> Embedded:
        pause()
        texts = [_bytes(one) for one in query.inputs]
        if b"raise" in texts:
            raise EngineFailure("told to")
        if b"refuse" in texts:
            raise RequestError(Fault.CONTEXT_EXCEEDED, "input", "too long")
        return Embedded([vector(text) for text in texts], sum(map(len, texts)))

    def _max_tokens(self, request: Generate, tokens: Sequence[int]) -> int:
        room = self.capacity.sequence_tokens - len(tokens)
        if room < (request.max_tokens != 0):
            raise RequestError(Fault.CONTEXT_EXCEEDED, "prompt", "too long")
        return min(DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens, room)

    def run(self, tick: Tick) -> TickResult:
        self.ticks.append(tick)
        self.result = None
        self.result = self._run(tick)
        return self.result

    def _run(self, tick: Tick) -> TickResult:
        self.memory.move(tick.kv_operations)
        self._check(tick)
        failure = self.failures.popleft() if tick.runs and self.failures else None
        if failure is Outcome.NO_CELLS:
            return TickResult(failure, (), 0.0)
        if failure is not None:
            for run in tick.runs:
                self.memory.add(run.slot, [UNKNOWN] * len(run.tokens), tick.adapters)
            if isinstance(failure, type):
                raise failure("told to")
            return TickResult(failure, (), 0.0)
        runs = list(tick.runs)
        drafted = [self._draft(draft, runs) for draft in tick.drafts]
        assert sum(len(run.tokens) for run in runs if run.span is None) <= self.capacity.batch_tokens
        for run in runs:
            self.memory.add(run.slot, run.tokens, tick.adapters)
        late = {index for index, run in enumerate(runs) if run.sampler is not None and self.slow(run.slot)}
        sampled = [self._make_late(run) if index in late else self._sample(run) for index, run in enumerate(runs)]
        logprobs = {
            index: [_logprobs(run, token) for token in tokens]
            for index, (run, tokens) in enumerate(zip(runs, sampled, strict=True))
            if tokens and run.logprobs is not None
        }
        logprobs |= {index: self._score(run) for index, run in enumerate(runs) if isinstance(run.logprobs, Scoring)}
        seconds = 0.01 * bool(runs)
        return TickResult(Outcome.DONE, sampled, seconds, logprobs, drafted, 0.001 * len(drafted), late=late)

    def _score(self, run: Run) -> list[Logprobs]:
        assert isinstance(run.logprobs, Scoring)
        assert run.sampler is None
        assert run.span is None
        sequence = [*self.memory.tokens(run.slot), run.logprobs.following]
        ends = range(run.start + 2, run.start + len(run.tokens) + 2)
        return [score_of_last(sequence[:end], run.logprobs.alternatives) for end in ends]

    def _draft(self, draft: Draft, runs: list[Run]) -> int:
        """Guesses of which some are right, and then one is wrong."""
        run = runs[draft.run]
        assert run.draft_tokens == 0
        assert list(draft.sequence) == [*self.memory.tokens(run.slot), *run.tokens], "drafted for another sequence"
        sequence = list(draft.sequence)
        for _ in range(zlib.crc32(bytes(sequence)) % (draft.limit + 1)):
            sequence.append(next_token(sequence))
        draft_tokens = [*sequence[len(draft.sequence) :], UNKNOWN][: draft.limit]
        runs[draft.run] = run._replace(tokens=[*run.tokens, *draft_tokens], draft_tokens=len(draft_tokens))
        return len(draft_tokens)

    def _make_late(self, run: Run) -> list[int]:
        self._late.append(run.sampler)
        if run.draft_tokens:
            self.memory.move([Release(run.slot, len(self.memory.tokens(run.slot)) - run.draft_tokens)])
        return []

    def _sample(self, run: Run) -> list[int]:
        """The next token and, as long as it had been guessed, the one after it; wrong guesses are forgotten."""
        if run.sampler is None:
            assert not run.draft_tokens
            return []
        assert isinstance(run.sampler, StandInSampler)
        self._late = [sampler for sampler in self._late if sampler is not run.sampler]
        sequence = self.memory.tokens(run.slot)
        assert tuple(sequence[: len(run.sampler.prompt)]) == run.sampler.prompt, "sampled with another one's sampler"
        made = {cell.made for cell in self.memory.sequences[run.slot]}
        assert made == {run.sampler.adapters}, "computed with other adapters"
        tokens: list[int] = []
        for end in range(len(sequence) - run.draft_tokens, len(sequence) + 1):
            tokens.append(next_token(sequence[:end]))
            if tokens[-1] == END or [tokens[-1]] != sequence[end : end + 1]:
                break
        if run.draft_tokens:
            self.memory.move([Release(run.slot, len(sequence) - run.draft_tokens + len(tokens) - 1)])
        return tokens

    def _check(self, tick: Tick) -> None:
        slots = {run.slot for run in tick.runs}
        assert len(slots) <= self.capacity.slots
        lengths = {slot: len(self.memory.sequences[slot]) for slot in slots}
        texts = set()
        for run in tick.runs:
            late = any(sampler is run.sampler for sampler in self._late)
            assert len(run.tokens) > run.draft_tokens >= 0 or (late and not run.tokens), "a run of nothing but guesses"
            # A slot that was not cleared before its next use fails this as well.
            assert run.start == lengths[run.slot], "positions have a gap or go back"
            lengths[run.slot] += len(run.tokens)
            assert UNKNOWN not in self.memory.tokens(run.slot), "goes on after a failure"
            assert run.slot not in texts, "more of a sequence behind its text, which is computed last"
            if run.span is None:
                texts.add(run.slot)
                assert min(run.tokens, default=0) >= 0, "media decoded as text"
            else:
                self._check_span(run, run.span)

    def _check_span(self, run: Run, span: Span) -> None:
        assert span.chunk.encoded, "computed before it was encoded"
        assert max(run.tokens) < 0, "text decoded as media"
        assert span.start <= run.start < run.start + len(run.tokens) <= span.end
        assert not span.whole or len(run.tokens) == span.end - span.start, "in parts what has to be whole"
        assert run.sampler is None


def _tokens(request: Generate) -> tuple[int, ...]:
    match request.prompt:
        case TokenIds(ids):
            return ids
        case MixedText(parts):
            return tuple(token for part in parts for token in (part.encode() if isinstance(part, str) else part.ids))
        case Infill():
            prompt = request.prompt.prefix + request.prompt.beginning
        case str() as prompt:
            pass
        case turns:
            prompt = "".join(turn.content for turn in turns)
    if prompt == "raise":
        raise EngineFailure("told to")
    if prompt == "refuse":
        raise RequestError(Fault.CONTEXT_EXCEEDED, "prompt", "too long")
    return tuple(prompt.encode())


def _bytes(one: str | TokenIds | MixedText | Pair) -> bytes:
    assert isinstance(one, str | TokenIds)
    return bytes(one.ids) if isinstance(one, TokenIds) else one.encode()


def _logprobs(run: Run, token: int) -> Logprobs:
    """The chosen token is the likeliest, and the others follow by their ids."""
    assert isinstance(run.logprobs, int)
    others = [other for other in range(ord("a"), ord("z") + 1) if other != token]
    best = [token, *others][: run.logprobs]
    return Logprobs(scored(token), tuple(scored(one, rank) for rank, one in enumerate(best)))


class SteppedWorker:
    """Implements ``scheduler.scheduler.Worker`` on the caller's thread: a job runs when the test says so."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.submitted: Callable[[], None] = lambda: None

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((job, done))
        self.submitted()

    def submit_lengthy(self, job: Callable[[Callable[[], None]], Any], done: Callable[[Any], None]) -> None:
        self.submit(lambda: job(self._pause), done)

    def _pause(self) -> None:
        """Others run meanwhile."""
        self.step()

    def step(self) -> None:
        """Do the oldest job, if there is one, and call back."""
        if not self.jobs:
            return
        job, done = self.jobs.popleft()
        try:
            result = job()
        except AssertionError:
            raise  # The stand-in's own complaint: the scheduler would take it for one more failing tick.
        except Exception as error:
            result = error
        done(result)


class StandInRunAhead:
    """Implements ``sessions.engine_api.RunAhead``: the ticks that were granted are jobs of ``worker``."""

    def __init__(self, engine: StandInEngine, worker: SteppedWorker) -> None:
        self._engine = engine
        self._worker = worker

    def grant(self, before: Tick, done: Callable[[TickResult | BaseException | None], None]) -> bool:
        self._worker.submit(lambda: self._run(before), done)
        self._latest = self._worker.jobs[-1]
        return True

    def take_back(self) -> bool:
        if self._latest not in self._worker.jobs:
            return False
        self._worker.jobs.remove(self._latest)
        return True

    def _run(self, before: Tick) -> TickResult | None:
        tick, result = self._engine.ticks[-1], self._engine.result
        assert tick.number == before.number, "granted behind another tick"
        following = next_tick(tick, result, self._engine.end_tokens)
        return None if following is None else self._engine.run(following)


class StandInVoice:
    """Implements ``speech.voice.Voice``: a text sounds as the code points of its characters do.

    A piece that has one of ``unspeakable`` in it fails.
    """

    name = "stand-in"
    languages = ("en", "de")
    clones = False

    def __init__(self, *unspeakable: str) -> None:
        self.unspeakable = unspeakable

    def speak(
        self, text: str, speaker: object = None, language: str = "", pause: object = None
    ) -> npt.NDArray[np.float32]:
        if any(words in text for words in self.unspeakable):
            raise SpeechError("tts: told to fail")
        return np.array([ord(char) / 2**21 for char in text], np.float32)


def heard(pcm: bytes) -> str:
    """What a ``StandInVoice`` has said in ``pcm``."""
    return "".join(chr(round(sample * 2**21)) for sample in np.frombuffer(pcm, "<f4"))
