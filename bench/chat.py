"""What /ws/chat does with pictures and speech: how soon it answers, and what that costs a stream beside it."""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from bench import standin_projectors
from bench.processes import Served, daemon
from bench.report import load_average, machine, number, progress, spread, table
from umaserve.client import Client

Message = dict[str, Any]

EDGES = (512, 1024)
"""Of pictures, in pixels; each 512 by 512 are a slice, and there is an overview beside them."""
ALONE_S, BESIDE_S = 10.0, 20.0
STREAM_TARGET_MS = 30
"""Of the stream that is watched: with the default of 80 a prompt may delay it for as long."""
ANSWER_TOKENS = 64
LARGE_BYTES = 75 << 20
"""Of a film, a third more in base64."""
MAX_PICTURES = 200
"""More than are encoded meanwhile, save by a GPU."""
SAMPLE_RATE = 24_000

_NOTES = """\
In ms. Each image is noise that the daemon has not seen before; the second turn asks about the same one again. Answers
have 8 tokens. Each row has the medians of its repeats, with the smallest and the largest.
"""
_SPEECH_NOTES = f"""\
Answers of {ANSWER_TOKENS} tokens, spoken while they are generated. In ms from the request. The factor is the seconds
of speech made per second, from the request to the end.
"""
_GAPS_NOTES = f"""\
Gaps in ms between the tokens of one stream with a target of {STREAM_TARGET_MS} ms: alone for {ALONE_S:.0f} s, then for
{BESIDE_S:.0f} s beside a client that sends one request after another ("others": how many were answered). Each of the
large messages contains {LARGE_BYTES >> 20} MiB of noise as an image, and is refused.
"""


@dataclass(slots=True)
class Told:
    """When what of one conversation came, in seconds from its request, and how much was heard."""

    first_text: float = float("nan")
    first_audio: float = float("nan")
    done: float = float("nan")
    heard_s: float = 0.0
    input_tokens: int = 0


@dataclass(slots=True)
class Watched:
    """The arrival of the tokens of streams, one after the other."""

    streams: list[list[float]] = field(default_factory=list)

    def gaps(self, begin: float, end: float) -> list[float]:
        """In ms, within each stream, of the tokens that came between these times."""
        within = [[at for at in stream if begin <= at <= end] for stream in self.streams]
        return [1000 * gap for stream in within for gap in np.diff(stream)]


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m bench.chat",
        description="Measure pictures and speech at /ws/chat. The projector is a stand-in of SmolVLM-256M's size with "
        "random weights, unless UMA_MMPROJ names one (and UMA_MODEL its model).",
        allow_abbrev=False,
    )
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="of each measurement (default: 5)")
    options = parser.parse_args()
    before = load_average()
    with _projector() as mmproj, daemon("umaserve", UMA_MMPROJ=mmproj) as at:
        print(_turns(at, options.repeats), flush=True)
        print(_speech(at, options.repeats), flush=True)
        print(_beside(at), flush=True)
    print(f"{machine()}.\nLoad average before: {before}; after: {load_average()}.")


@contextlib.contextmanager
def _projector() -> Iterator[str]:
    """The projector's path."""
    if configured := os.environ.get("UMA_MMPROJ"):
        yield configured
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        progress("making a projector of random weights")
        yield str(standin_projectors.vision(Path(folder) / "mmproj.gguf", shape=standin_projectors.SMOLVLM))


# -- the measurements --------------------------------------------------------------------------------------------


def _turns(at: Served, repeats: int) -> str:
    rows = []
    for edge in EDGES:
        progress(f"pictures of {edge} x {edge}")
        first, second, tokens = [], [], 0
        for seed in range(repeats):
            item = _picture(edge, seed)
            once = _ask(at, [_user(item, "What is it?")], 8)
            again = _ask(at, [_user(item, "What is it?"), _answer(), _user("And where?")], 8)
            first.append(1000 * once.first_text)
            second.append(1000 * again.first_text)
            tokens = once.input_tokens
        factor = statistics.median(before / after for before, after in zip(first, second, strict=True))
        rows.append([f"{edge} x {edge}", str(tokens), spread(first), spread(second), f"{factor:.1f}"])
    header = ["image", "prompt tokens", "first turn: first text", "second turn", "times faster"]
    return f"## Images, repeats: {repeats}\n\n{table(header, rows)}\n{_NOTES}"


def _speech(at: Served, repeats: int) -> str:
    progress("speech")
    _ask(at, [_user("Hello!")], 8, spoken=True)  # The voice reads its model.
    found = [
        _ask(at, [_user(f"Tell me {n} things about the sea.")], ANSWER_TOKENS, spoken=True)
        for n in range(2, 2 + repeats)
    ]
    row = [
        spread([1000 * one.first_text for one in found]),
        spread([1000 * one.first_audio for one in found]),
        spread([1000 * one.done for one in found]),
        spread([one.heard_s for one in found]),
        spread([one.heard_s / one.done for one in found]),
    ]
    header = ["first text", "first audio", "done", "speech, s", "factor"]
    return f"## Speech, repeats: {repeats}\n\n{table(header, [row])}\n{_SPEECH_NOTES}"


def _beside(at: Served) -> str:
    seeds = iter(range(1000, 10**6))
    # Made before, since making them would take a core from the daemon.
    pictures = iter([_picture(EDGES[0], next(seeds)) for _ in range(MAX_PICTURES)])
    large = _request(at, base64.b64encode(np.random.default_rng(0).bytes(LARGE_BYTES)).decode())
    works: dict[str, Callable[[], object]] = {
        "images are encoded": lambda: _ask(at, [_user(next(pictures), "What is it?")], 1),
        "answers are spoken": lambda: _ask(
            at, [_user(f"Tell me {next(seeds)} things about the sea.")], ANSWER_TOKENS, spoken=True
        ),
        "large messages come": lambda: _have_refused(at, large),
        "answers are written": lambda: _ask(at, [_user(f"Tell me {next(seeds)} things.")], ANSWER_TOKENS),
    }
    watched = Watched()
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(at, watched, over))
    watching.start()
    while not watched.streams:
        time.sleep(0.05)
    rows = [_row("alone", *_during(watched, ALONE_S, None))]
    for name, work in works.items():
        rows.append(_row(name, *_during(watched, BESIDE_S, work)))
    rows.append(_row("alone again", *_during(watched, ALONE_S, None)))
    over.set()
    watching.join()
    header = ["while", "others", "gap p50", "p95", "p99", "max"]
    return f"## A stream beside them\n\n{table(header, rows)}\n{_GAPS_NOTES}"


def _during(watched: Watched, seconds: float, work: Callable[[], object] | None) -> tuple[int, list[float]]:
    """How often ``work`` was done, and the gaps meanwhile."""
    progress(f"{seconds:.0f} s")
    begin, done = time.monotonic(), 0
    while (left := begin + seconds - time.monotonic()) > 0:
        if work is None:
            time.sleep(left)
        else:
            work()
            done += 1
    return done, watched.gaps(begin, time.monotonic())


def _row(name: str, done: int, gaps: Sequence[float]) -> list[str]:
    cuts = np.percentile(gaps, [50, 95, 99, 100])
    return [name, str(done), *(number(float(cut)) for cut in cuts)]


# -- clients -----------------------------------------------------------------------------------------------------


def _watch(at: Served, watched: Watched, over: threading.Event) -> None:
    while not over.is_set():
        options = {"max_tokens": 512, "ignore_eos": True, "slo": {"target_tbt_ms": STREAM_TARGET_MS}}
        tokens: list[float] = []
        watched.streams.append(tokens)
        with Client(at.socket).generate("Once upon a time", temperature=1.0, **options) as stream:
            for _event in stream:
                tokens.append(time.monotonic())
                if over.is_set():
                    break


def _ask(at: Served, messages: Sequence[Message], tokens: int, *, spoken: bool = False) -> Told:
    request: Message = {"messages": messages, "generation": {"max_new_tokens": tokens, "temperature": 0}}
    if spoken:
        request["tts"] = {"mode": "audio_assistant"}
    told = Told()
    with connect(f"ws://{at.http}/ws/chat", max_size=None, ping_interval=None) as client:
        dumped = json.dumps(request)
        asked = time.monotonic()
        client.send(dumped)
        with contextlib.suppress(ConnectionClosed):
            while True:
                _take(json.loads(client.recv()), told, time.monotonic() - asked)
    return told


def _have_refused(at: Served, request: bytes) -> None:
    host, port = at.http.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as client:
        client.sendall(request)
        answer = client.recv(65536)
    if not answer.startswith(b"HTTP/1.1 400 "):
        raise RuntimeError(f"a picture of noise was answered with {answer[:200]!r}")


def _request(at: Served, data: str) -> bytes:
    """Over HTTP, made before: to mask 100 MB for a WebSocket would hold up who counts the tokens."""
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {at.http}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _take(message: Message, told: Told, after: float) -> None:
    match message["type"]:
        case "prefill_done":
            told.input_tokens = message["input_tokens"]
        case "chunk":
            if message["text_delta"] and np.isnan(told.first_text):
                told.first_text = after
            if message["audio_data"] and np.isnan(told.first_audio):
                told.first_audio = after
            told.heard_s += len(base64.b64decode(message["audio_data"] or "")) / 4 / SAMPLE_RATE
        case "done":
            told.done = after
        case "error":
            raise RuntimeError(message["error"])


def _user(*content: str | Message) -> Message:
    items = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
    return {"role": "user", "content": items}


def _answer() -> Message:
    return {"role": "assistant", "content": "It is noise."}


def _picture(edge: int, seed: int) -> Message:
    pixels = np.random.default_rng(seed).integers(0, 256, (edge, edge, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return {"type": "image", "data": base64.b64encode(file.getvalue()).decode()}


if __name__ == "__main__":
    main()
