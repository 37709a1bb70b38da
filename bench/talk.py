"""``python -m bench.talk``: how long after the end of speech an answer is heard, over OpenAI's Realtime API.

The box's own voice speaks questions to a daemon, in real time as a microphone would, and a daemon with the same voice
answers. Once it hears the sound, by a projector with random weights: its answers make no sense, but take as long. Once
it reads the question's text, which is the least that it can take.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import math
import os
import select
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bench.processes import Served, daemon
from bench.report import load_average, machine, number, progress, table
from umaserve.core.errors import ConfigError, ModelError
from umaserve.speech.hibari_voice import HibariVoice
from umaserve.wire.websocket import WebSocketCodec
from umaserve.wire.websocket_handshake import check_accept, client_handshake, read_answer

RATE = 24_000
PACKET_S = 0.02
PACKET = int(2 * RATE * PACKET_S)
"""Bytes of one packet, 16-bit samples."""
SILENCE = bytes(PACKET)
SILENCE_MS = 500
"""Silence after which the daemon takes the question to have ended: OpenAI's default."""
AUDIBLE = 0.003
MAX_EVENT_BYTES = 1 << 20
ANSWER_S = 120.0
ANSWER_TOKENS = 24
INSTRUCTIONS = (
    "You answer the telephone of a small hotel by the sea. Be friendly, and say no more than one short sentence. The "
    "hotel has twelve rooms, six of them with a balcony. Breakfast is served from seven to ten. The restaurant is open "
    "in the evening from Tuesday to Sunday. Dogs are welcome. The bus to the station leaves every half hour."
)
QUESTIONS = (
    "Good morning! Do you have a room for two people next weekend?",
    "Does it have a balcony, and can we see the water from there?",
    "When is breakfast, and is it part of the price?",
    "We have a little dog with us. Is that all right?",
    "How do we get to you from the railway station?",
    "Thank you very much. See you on Saturday!",
)

STEPS = {
    "speech stopped": "input_audio_buffer.speech_stopped",
    "response": "response.created",
    "text": "response.output_audio_transcript.delta",
    "sound": "response.output_audio.delta",
}
"""The first event of each step, by its title."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn shows."""

    after: dict[str, float]
    """Milliseconds from the end of the question to each step; NaN for one that never came."""
    computed: int
    """Tokens of the prompt that were left to compute when the answer began."""

    @classmethod
    def of(cls, ended_at: float, events: Sequence[tuple[float, dict[str, Any]]]) -> Turn:
        """From the events of a turn with the times at which they came. Raises ``RuntimeError`` where its answer
        failed."""
        first: dict[str, float] = {}
        for at, event in events:
            first.setdefault(event["type"], at)
        response = events[-1][1].get("response", {})
        usage = response.get("usage")
        if usage is None or response["status"] not in ("completed", "incomplete"):
            raise RuntimeError(f"the daemon didn't answer: {events[-1][1]}")
        after = {title: 1000 * (first.get(kind, math.nan) - ended_at) for title, kind in STEPS.items()}
        return cls(after, usage["input_tokens"] - usage["input_token_details"]["cached_tokens"])


class Talk:
    """One session with a daemon, whose client speaks or writes."""

    def __init__(self, http: str) -> None:
        host, port = http.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._codec = WebSocketCodec(MAX_EVENT_BYTES, client=True)
        request, key = client_handshake(http, "/v1/realtime?model=default")
        self._socket.sendall(request)
        received = b""
        while (answer := read_answer(received)) is None:
            received += self._received()
        status, headers, rest = answer
        check_accept(status, headers, key)
        self._codec.receive_data(rest)
        self._until("session.created")

    def close(self) -> None:
        self._socket.close()

    def begin(self, *, instructions: str) -> None:
        """Set the session up, so that answers are spoken."""
        pcm = {"type": "audio/pcm", "rate": RATE}
        turns = {"type": "server_vad", "silence_duration_ms": SILENCE_MS}
        audio = {"input": {"format": pcm, "turn_detection": turns}, "output": {"format": pcm}}
        options = {"instructions": instructions, "max_output_tokens": ANSWER_TOKENS, "temperature": 0}
        self._send("session.update", session={"type": "realtime", "audio": audio, **options})
        self._until("session.updated")

    def speak(self, sound: bytes) -> Turn:
        """Speak a question in real time, and be silent until its answer has ended."""
        packets = [sound[at : at + PACKET].ljust(PACKET, b"\0") for at in range(0, len(sound), PACKET)]
        events: list[tuple[float, dict[str, Any]]] = []
        begun_at, n_sent = time.monotonic(), 0
        while not _ended(events):
            due_at = begun_at + PACKET_S * n_sent
            while (left_s := due_at - time.monotonic()) > 0 and not _ended(events):
                if select.select([self._socket], [], [], left_s)[0]:
                    events += self._events(self._received())
            packet = packets[n_sent] if n_sent < len(packets) else SILENCE
            self._send("input_audio_buffer.append", audio=base64.b64encode(packet).decode())
            n_sent += 1
            _check_patience(begun_at + PACKET_S * len(packets))
        return Turn.of(begun_at + len(sound) / (2 * RATE), events)

    def write(self, text: str) -> Turn:
        """Write a question, and wait until its answer has ended."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        asked_at = time.monotonic()
        self._send("conversation.item.create", item=item)
        self._send("response.create")
        return Turn.of(asked_at, self._until("response.done"))

    def _until(self, kind: str) -> list[tuple[float, dict[str, Any]]]:
        events, begun_at = self._events(b""), time.monotonic()
        while not _ended(events, kind):
            _check_patience(begun_at)
            if select.select([self._socket], [], [], 1.0)[0]:
                events += self._events(self._received())
        return events

    def _events(self, received: bytes) -> list[tuple[float, dict[str, Any]]]:
        self._codec.receive_data(received)
        return [(time.monotonic(), orjson.loads(one)) for one in iter(self._codec.next_payload, None)]

    def _received(self) -> bytes:
        received = self._socket.recv(1 << 16)
        if not received:
            raise RuntimeError("the daemon has closed the connection")
        return received

    def _send(self, kind: str, **fields: object) -> None:
        self._socket.sendall(self._codec.send(orjson.dumps({"type": kind, **fields})))


def _ended(events: Sequence[tuple[float, dict[str, Any]]], kind: str = "response.done") -> bool:
    for _at, event in events[-1:]:
        if event["type"] == "error":
            raise RuntimeError(f"the daemon refused an event: {event['error']}")
        return bool(event["type"] == kind)
    return False


def _check_patience(since: float) -> None:
    if time.monotonic() - since > ANSWER_S:
        raise RuntimeError(f"the daemon took more than {ANSWER_S:g} s to answer")


def spoken(text: str, voice: HibariVoice) -> bytes:
    """The text as 16-bit samples, which end with the last audible one."""
    samples = voice.speak(text)
    end = int(np.flatnonzero(np.abs(samples) >= AUDIBLE)[-1]) + 1
    return bytes((samples[:end] * 32767).astype("<i2").tobytes())


def heard(at: Served, questions: Sequence[str]) -> list[Turn]:
    """What the turns of a conversation show whose questions are spoken."""
    voice = HibariVoice()
    sounds = [spoken(text, voice) for text in questions]
    with _talk(at, "Guests speak with you.") as talk:
        return [talk.speak(sound) for sound in sounds]


def read(at: Served, questions: Sequence[str]) -> list[Turn]:
    """What the turns of a conversation show whose questions are written."""
    with _talk(at, "Guests write to you.") as talk:
        return [talk.write(text) for text in questions]


@contextlib.contextmanager
def _talk(at: Served, beginning: str) -> Iterator[Talk]:
    """A session whose instructions begin as no other's."""
    talk = Talk(at.http)
    try:
        # What the daemon loads for its first answer is loaded before the one that counts.
        talk.begin(instructions="Be brief.")
        talk.write("Hello!")
    finally:
        talk.close()
    talk = Talk(at.http)
    try:
        talk.begin(instructions=f"{beginning} {INSTRUCTIONS}")
        yield talk
    finally:
        talk.close()


def rows(name: str, turns: Sequence[Turn]) -> Iterator[list[str]]:
    """The rows of the table: of the first turn, and the medians of the others."""
    for which, some in (("first turn", turns[:1]), ("later turns", turns[1:])):
        steps = [_median([turn.after[title] for turn in some]) for title in STEPS]
        computed = _median([float(turn.computed) for turn in some])
        stopped = 0.0 if math.isnan(steps[0]) else steps[0]
        yield [f"{name}, {which}", *map(number, (*steps, steps[-1] - stopped, computed))]


def _median(values: Sequence[float]) -> float:
    """The median of what came."""
    came = [value for value in values if not math.isnan(value)]
    return statistics.median(came) if came else math.nan


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both forms; returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m bench.talk",
        description="Measure how long after the end of a spoken question an answer is heard.",
        epilog="The daemon's settings come from the UMA_* variables.",
        allow_abbrev=False,
    )
    parser.add_argument("--mmproj", metavar="FILE", help="the model's projector (default: one with random weights)")
    parser.add_argument("--quick", action="store_true", help="two turns, to see that all of it works")
    options = parser.parse_args(argv)
    questions = QUESTIONS[:2] if options.quick else QUESTIONS
    before = load_average()
    try:
        with tempfile.TemporaryDirectory(prefix="talk-") as folder:
            projector = options.mmproj or _random_projector(Path(folder) / "mmproj.gguf")
            with daemon("umaserve", UMA_MMPROJ=os.path.abspath(projector)) as at:
                progress("spoken questions")
                by_ear = heard(at, questions)
                progress("written questions")
                by_eye = read(at, questions)
    except (ConfigError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except (RuntimeError, ImportError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        return 130
    header = ["question", *(f"{title}, ms" for title in STEPS), "sound after that silence, ms", "tokens computed"]
    print(table(header, [*rows("spoken", by_ear), *rows("written", by_eye)]))
    print(f"From the end of the question on. Speech stops after a silence of {SILENCE_MS} ms.")
    print("Tokens computed: those of the prompt that were left when the answer began.")
    print(f"{machine()}.")
    print(f"Load average before: {before}; after: {load_average()}.")
    return 0


def _random_projector(path: Path) -> Path:
    """A projector of the shape of Whisper's smallest encoder, for the default model."""
    from tests.support import standin_projectors  # It needs gguf, which a projector of one's own doesn't.

    shape = replace(standin_projectors.TINY, width=384, hidden=1536, heads=6, layers=4)
    return standin_projectors.audio(path, shape)


if __name__ == "__main__":
    sys.exit(main())
