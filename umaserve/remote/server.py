"""The engine's end: does what the daemon calls for."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, get_type_hints

from umaserve import __version__
from umaserve.core.errors import ModelError, RequestError
from umaserve.core.events import ModelInfo
from umaserve.core.queries import Answer, Embed, Embedded, Query
from umaserve.core.requests import Generate
from umaserve.remote.channel import Channel, Kind, Lost
from umaserve.remote.failures import FAILURES, REQUEST_ERRORS, CallbackFailed, failure_of
from umaserve.remote.frames import Frame
from umaserve.remote.run_ahead import Granted
from umaserve.remote.sounds import SAMPLES, SOUND
from umaserve.remote.values import Codec, Coder, Malformed, Tail
from umaserve.sessions.engine_api import (
    Allowance,
    Capacity,
    Chunk,
    Engine,
    Listing,
    NamedFile,
    Prepared,
    Sampler,
    Tick,
    TickResult,
)
from umaserve.settings.daemon import Config
from umaserve.speech.voice import Samples, Voice
from umaserve.system.threads import DISK_NICE, LOADING_NICE, MEDIA_NICE, be_called, set_own_niceness

log = logging.getLogger(__name__)

Ask = Callable[[float], bool]
"""Calls back: the progress of loading; or that the engine may pause. Returns whether to go on."""
LoadEngine = Callable[[Config, str | None, Samples | None, Allowance, Ask], tuple[Engine, Voice | None]]
"""Loads the model, and the voice of ``tts_model``. The text is that of the operator's chat template, the samples are of
the voice's default speaker. Raises ``ModelError``."""
Held = Annotated[Prepared, "held"]
"""Request that the engine has prepared; the daemon has its number."""
Sound = Annotated[Samples, "sound"]
"""Samples that a voice has said: within [-1, 1]."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The properties of an engine that stay."""

    capacity: Capacity
    end_tokens: frozenset[int]
    pieces: Sequence[bytes]
    info: ModelInfo
    languages: Sequence[str]
    """Languages of the voice; none where there is no voice."""


class Calls:
    """Methods that the daemon may call, each on the thread that does this kind of work. The annotations say what
    crosses."""

    def __init__(self, load: LoadEngine, granted: Granted | None) -> None:
        self._load = load
        self._granted = granted
        self._engine: Engine
        self._voice: Voice | None = None

    def load(
        self,
        version: str,
        config: Config,
        chat_template: str | None,
        speaker: Samples | None,
        allowance: Allowance,
        ask: Ask,
    ) -> Loaded:
        if version != __version__:
            raise ModelError(f"umaserve {version} was replaced by {__version__} while it ran: restart it")
        if allowance.beside:
            # Its thread does nothing else.
            set_own_niceness(LOADING_NICE)
        self._engine, self._voice = engine, voice = self._load(config, chat_template, speaker, allowance, ask)
        languages = () if voice is None else voice.languages
        return Loaded(engine.capacity, engine.end_tokens, engine.pieces, engine.info, languages)

    def prepare(self, request: Generate, tenant: str, generated: Sequence[int], ask: Ask) -> Prepared:
        if request.has_media:
            # The daemon has a thread for these alone.
            set_own_niceness(MEDIA_NICE)
        prepared = self._engine.prepare(request, tenant, lambda: ask(0.0), generated)
        # The daemon's sampler stands for all of it.
        return replace(prepared, sampler=prepared)

    def prepare_choice(self, request: Generate, first: Held) -> Held:
        return self._engine.prepare_choice(request, first)

    def change(self, prepared: Held, request: Generate, generated: Sequence[int]) -> tuple[Held, int]:
        changed = self._engine.change(prepared, request, generated)
        return changed, changed.max_tokens

    def encode(self, chunk: Chunk, ask: Ask) -> bool:
        wanted = True

        def pause() -> None:
            nonlocal wanted
            wanted = ask(0.0)

        # Whether it is wanted is asked after each node of the graph: too often for a message each time.
        self._engine.encode(chunk, pause, lambda: wanted)
        return chunk.encoded

    def answer(self, query: Query) -> Answer:
        return self._engine.answer(query)

    def embed(self, query: Embed, ask: Ask) -> Embedded:
        def pause() -> None:
            ask(0.0)

        return self._engine.embed(query, pause)

    def speak(self, text: str, speaker: Samples | None, language: str, ask: Ask) -> Sound:
        def pause() -> None:
            ask(0.0)

        assert self._voice is not None
        return self._voice.speak(text, speaker, language, pause)

    def shed(self) -> None:
        self._engine.shed()

    def run(self, tick: Tick) -> TickResult:
        if self._granted is None or not tick.runs:
            return self._engine.run(tick)
        self._granted.begins(tick)
        result = self._engine.run(tick)
        self._granted.ended(result)
        return result

    def run_next(self) -> TickResult | None:
        """Run the tick behind the last one, which the daemon has granted; ``None`` if it can't be run."""
        assert self._granted is not None
        tick = self._granted.next_tick(self._engine.end_tokens)
        return None if tick is None else self.run(tick)

    def look(self) -> Listing:
        set_own_niceness(DISK_NICE)
        return self._engine.look()

    def keep(
        self, scope: str, tokens: Sequence[int], offset: int, size: int, replaced: Sequence[str], ask: Ask
    ) -> str | None:
        return self._engine.keep(scope, tokens, offset, size, replaced, lambda: ask(0.0))

    def fetch(self, name: str, offset: int, size: int, ask: Ask) -> bool:
        return self._engine.fetch(name, offset, size, lambda: ask(0.0))

    def give_name(self, name: str, filename: str) -> int:
        return self._engine.give_name(name, filename)

    def take_back(self, filename: str) -> NamedFile:
        return self._engine.take_back(filename)


class Call(NamedTuple):
    """Signature of one of ``Calls``: how it crosses."""

    arguments: Coder
    result: Coder
    asks: bool


def calls(sampler: Coder, held: Coder, chunk: Coder) -> dict[str, Call]:
    """All calls by name; the coders are those of what has a number, which differ from end to end."""
    own: dict[object, Coder] = {Sampler: sampler, Held: held, Chunk: chunk, RequestError: REQUEST_ERRORS}
    codec = Codec({**own, Samples: SAMPLES, Sound: SOUND})
    made = {}
    for name, method in vars(Calls).items():
        if not name.startswith("_"):
            hints = get_type_hints(method, include_extras=True)
            result, asks = codec.of(hints.pop("return")), hints.pop("ask", None) is not None
            made[name] = Call(codec.record(tuple, dict(enumerate(hints.values()))), result, asks)
    return made


class RefTable:
    """Objects that the daemon has numbers of, until it has given each back as often as it got it. Safe from any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        """Numbers by the item's identity."""
        self._times: dict[int, int] = {}
        self._next = itertools.count()

    def add(self, item: object) -> int:
        with self._lock:
            number = self._numbers.get(id(item))
            if number is None:
                number = self._numbers[id(item)] = next(self._next)
                self._items[number] = item
            self._times[number] = self._times.get(number, 0) + 1
            return number

    def take_back(self, number: int, times: int) -> None:
        with self._lock:
            self._times[number] -= times
            if not self._times[number]:
                del self._times[number], self._numbers[id(self._items.pop(number))]

    def __getitem__(self, number: int) -> Any:
        return self._items[number]

    def __len__(self) -> int:
        return len(self._items)


class Server:
    """Serves the daemon's threads, each by a thread of its own, which is named after its first call."""

    def __init__(self, load: LoadEngine, granted: Granted | None = None) -> None:
        """``granted``: the ticks that may run ahead, where any may."""
        self.lent = lent = RefTable()
        self._calls = Calls(load, granted)
        self._granted = granted
        self._ticking: Channel | None = None
        """Channel of the thread that runs ticks."""
        self._signatures = calls(
            Coder(lambda prepared, _: lent.add(prepared), lambda number, _: lent[number].sampler),
            Coder(lambda prepared, _: lent.add(prepared), lambda number, _: lent[number]),
            Coder(lambda chunk, _: [lent.add(chunk), chunk.encoded], lambda number, _: lent[number]),
        )

    def serve(self, channel: Channel) -> None:
        """Serve until the daemon is gone."""
        try:
            self._begin(channel)
            while True:
                self._do(channel, self._receive(channel))
        except Lost:
            return

    def _receive(self, channel: Channel) -> Frame:
        """Receive the next frame. On the thread for them, ticks that the daemon has granted run until it comes."""
        while self._granted is not None and channel is self._ticking and self._granted.comes_next(channel):
            self._run_next(self._granted)
        return channel.receive()

    def _run_next(self, granted: Granted) -> None:
        self._answer(granted.answers, "run_next", self._calls.run_next)

    def load(self, channel: Channel) -> None:
        """Serve the first call, which loads the model, and no other: the thread is to end then
        (docs/internals/threads.md)."""
        with contextlib.suppress(Lost):
            self._begin(channel)

    def _begin(self, channel: Channel) -> None:
        frame = channel.receive()
        be_called(str(frame.head[1]))
        self._do(channel, frame)

    def _do(self, channel: Channel, frame: Frame) -> None:
        kind, name, written, freed = frame.head
        if kind != Kind.CALL:
            raise Malformed(f"expected a call, got {kind!r:.40}")
        for number, times in freed:
            self.lent.take_back(number, times)
        call = self._signatures[name]
        arguments = call.arguments.read(written, Tail(frame.tail))
        if name == "run" and arguments[0].runs:
            self._ticking = channel
        asks = {"ask": lambda number: self._ask(channel, number)} if call.asks else {}
        self._answer(channel, name, functools.partial(getattr(self._calls, name), *arguments, **asks))

    def _answer(self, channel: Channel, name: str, call: Callable[[], Any]) -> None:
        tail: list[bytes | memoryview] = []
        try:
            channel.send(Kind.DONE, self._signatures[name].result.write(call(), tail), tail=tail)
        except Lost:
            raise
        except Exception as error:
            failure = failure_of(error)
            if not isinstance(error, RequestError | ModelError | CallbackFailed):
                log.exception("%s failed", name)
            tail = []
            channel.send(Kind.FAILED, FAILURES.write(failure, tail), tail=tail)

    def _ask(self, channel: Channel, number: float) -> bool:
        channel.send(Kind.ASK, number)
        # One tick in each pause, or the call would not get on.
        if self._granted is not None and channel is self._ticking and self._granted.take():
            self._run_next(self._granted)
        while (frame := channel.receive()).head[0] != Kind.TELL:
            self._do(channel, frame)
        _kind, answer = frame.head
        if answer is None:
            raise CallbackFailed
        return bool(answer)
