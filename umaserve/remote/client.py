"""The daemon's end: an engine whose every method is a call to the engine's process, on the same thread as before."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from umaserve import __version__
from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import Answer, Embed, Embedded, Query
from umaserve.core.requests import Generate
from umaserve.remote.channel import Channel, Kind, Lost
from umaserve.remote.failures import FAILURES, CallbackFailed, error_of
from umaserve.remote.frames import TooLarge
from umaserve.remote.run_ahead import RunAhead
from umaserve.remote.server import Ask, calls
from umaserve.remote.values import Coder, Malformed, Tail
from umaserve.sessions.engine_api import (
    Allowance,
    Chunk,
    EngineLost,
    Listing,
    NamedFile,
    Prepared,
    Tick,
    TickResult,
    YieldPoint,
)
from umaserve.settings.daemon import Config
from umaserve.speech.voice import Samples

log = logging.getLogger(__name__)


LOOP_S = 10.0
"""How long the loop's own calls may take, in seconds, since all clients wait; they take some microseconds mostly."""


class RemoteRef:
    """Handle for something of the engine's, which the engine frees when the handle is gone. As a ``Chunk``, it is
    ``encoded`` or not."""

    def __init__(self, number: int, freed: deque[tuple[int, int]]) -> None:
        self.number = number
        self.times = 0
        """How often the engine has sent the number."""
        self.encoded = False
        self._freed = freed

    def __del__(self) -> None:
        # Told with the next call. On whichever thread, and in the midst of anything: without a lock.
        self._freed.append((self.number, self.times))


class RemoteEngine:
    """Implements ``sessions.engine_api.Engine``. Each thread that calls it gets one of the channels, in the order of
    their first calls. All methods raise ``EngineLost``."""

    def __init__(
        self,
        channels: Sequence[Channel],
        config: Config,
        chat_template: str | None,
        allowance: Allowance,
        progress: Ask,
        speaker: Samples | None = None,
        run_ahead: RunAhead | None = None,
    ) -> None:
        """Have the model loaded, and the voice of ``tts_model``, whose default speaker is ``speaker``. Raises
        ``ModelError``. ``progress`` is as in ``models.engine_supervisor.EngineHandle``."""
        self.run_ahead = run_ahead
        self._channels = channels
        self._unused = list(reversed(channels))
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._freed: deque[tuple[int, int]] = deque()
        self._lent: WeakValueDictionary[int, RemoteRef] = WeakValueDictionary()
        number = Coder(lambda lent, _: lent.number, lambda value, _: self._borrow(value))
        self._calls = calls(number, number, Coder(number.write, lambda value, _: self._chunk(value)))
        # The process that reads model files has no business with relays, and their secret.
        without_secret = replace(config, relay=(), worker_secret="")
        loaded = self._call("load", __version__, without_secret, chat_template, speaker, allowance, ask=progress)
        if run_ahead is not None:
            run_ahead.read_by(self._calls["run_next"].result, self.close)
        self.capacity = loaded.capacity
        self.end_tokens: frozenset[int] = loaded.end_tokens
        self.pieces: Sequence[bytes] = loaded.pieces
        self.info = loaded.info
        self.languages: Sequence[str] = loaded.languages
        """Languages of the voice."""

    # -- the engine's methods ------------------------------------------------------------------------------------

    def prepare(
        self,
        request: Generate,
        tenant: str = "",
        wanted: Callable[[], bool] = lambda: True,
        generated: Sequence[int] = (),
    ) -> Prepared:
        prepared: Prepared = self._call("prepare", _asked(request), tenant, generated, ask=lambda _: wanted())
        return prepared

    def prepare_choice(self, request: Generate, first: Prepared) -> Prepared:
        return replace(first, sampler=self._call("prepare_choice", _asked(request), first.sampler))

    def change(self, prepared: Prepared, request: Generate, generated: Sequence[int]) -> Prepared:
        sampler, max_tokens = self._call("change", prepared.sampler, _asked(request), generated)
        return replace(prepared, sampler=sampler, max_tokens=max_tokens)

    def encode(self, chunk: Chunk, pause: YieldPoint, wanted: Callable[[], bool]) -> None:
        assert isinstance(chunk, RemoteRef)

        def ask(_: float) -> bool:
            pause()
            return wanted()

        if wanted():
            chunk.encoded = self._call("encode", chunk, ask=ask)

    def answer(self, query: Query) -> Answer:
        answer: Answer = self._call("answer", query)
        return answer

    def embed(self, query: Embed, pause: YieldPoint) -> Embedded:
        def ask(_: float) -> bool:
            pause()
            return True

        embedded: Embedded = self._call("embed", query, ask=ask)
        return embedded

    def speak(self, text: str, speaker: Samples | None, language: str, pause: YieldPoint) -> Samples:
        """Speak ``text``, as ``speech.voice.Voice.speak``, by the voice that was loaded."""

        def ask(_: float) -> bool:
            pause()
            return True

        samples: Samples = self._call("speak", text, speaker, language, ask=ask)
        return samples

    def shed(self) -> None:
        self._call("shed")

    def run(self, tick: Tick) -> TickResult:
        result: TickResult = self._call("run", tick)
        return result

    def look(self) -> Listing:
        listing: Listing = self._call("look")
        return listing

    def keep(
        self,
        scope: str,
        tokens: Sequence[int],
        offset: int,
        size: int,
        replaced: Sequence[str],
        wanted: Callable[[], bool],
    ) -> str | None:
        name: str | None = self._call("keep", scope, tokens, offset, size, replaced, ask=lambda _: wanted())
        return name

    def fetch(self, name: str, offset: int, size: int, wanted: Callable[[], bool]) -> bool:
        whole: bool = self._call("fetch", name, offset, size, ask=lambda _: wanted())
        return whole

    def give_name(self, name: str, filename: str) -> int:
        n_bytes: int = self._call("give_name", name, filename)
        return n_bytes

    def take_back(self, filename: str) -> NamedFile:
        found: NamedFile = self._call("take_back", filename)
        return found

    def close(self) -> None:
        """End the connection, and so the engine's process."""
        for channel in self._channels:
            channel.close()

    # -- calls ---------------------------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: object, ask: Ask = lambda _: True) -> Any:
        try:
            return self._answer(name, arguments, ask)
        except Lost as error:
            # One that was too slow is not waited for again.
            self.close()
            raise EngineLost(f"the engine's process is gone: {error}") from None
        except (Malformed, RecursionError) as error:
            log.error("the engine's process has sent an invalid answer to %s, and is ended: %s", name, error)
            self.close()
            raise EngineLost("the engine's process has sent an invalid answer") from None

    def _answer(self, name: str, arguments: Sequence[object], ask: Ask) -> Any:
        call, channel = self._calls[name], self._channel()
        tail: list[bytes | memoryview] = []
        written = call.arguments.write(arguments, tail)
        freed = [self._freed.popleft() for _ in range(len(self._freed))]
        try:
            channel.send(Kind.CALL, name, written, freed, tail=tail)
        except TooLarge as error:
            self._freed += freed
            raise RequestError(Fault.PROMPT_TOO_LARGE, "request", f"too large for the engine: {error}") from None
        raised: BaseException | None = None
        while True:
            frame = channel.receive()
            came = Tail(frame.tail)
            match frame.head:
                case [Kind.ASK, int() | float() as number]:
                    raised, goes_on = _called_back(ask, number)
                    channel.send(Kind.TELL, goes_on)
                case [Kind.DONE, result]:
                    value = call.result.read(result, came)
                    came.end()
                    return value
                case [Kind.FAILED, failure]:
                    failed = error_of(FAILURES.read(failure, came))
                    raise raised if raised is not None and isinstance(failed, CallbackFailed) else failed
                case _:
                    raise Malformed(f"expected an answer, got {frame.head!r:.40}")

    def _channel(self) -> Channel:
        mine: Channel | None = getattr(self._mine, "channel", None)
        if mine is None:
            with self._lock:
                mine = self._mine.channel = self._unused.pop()
            if threading.current_thread() is threading.main_thread():
                mine.limit(LOOP_S)
        return mine

    def _borrow(self, number: object) -> RemoteRef:
        if type(number) is not int:
            raise Malformed(f"expected a number, got {number!r:.40}")
        with self._lock:
            lent = self._lent.get(number)
            if lent is None:
                lent = self._lent[number] = RemoteRef(number, self._freed)
            lent.times += 1
            return lent

    def _chunk(self, value: object) -> RemoteRef:
        match value:
            case [number, bool(encoded)]:
                chunk = self._borrow(number)
                chunk.encoded |= encoded
                return chunk
        raise Malformed(f"expected a chunk, got {value!r:.40}")


def _asked(request: Generate) -> Generate:
    """Part of ``request`` that the engine needs."""
    return replace(request, recorded=None, spoken=None)


def _called_back(ask: Ask, number: float) -> tuple[BaseException | None, bool | None]:
    """The error that ``ask`` raised, else what it returned."""
    try:
        return None, ask(number)
    except BaseException as error:
        return error, None
