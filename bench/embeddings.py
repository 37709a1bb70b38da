"""What embedding does to a stream beside it, and how many texts are embedded each second:
``python -m bench.embeddings [--texts N] [--model FILE]``."""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path

from bench.report import number, table

CLIENTS = 4
TEXTS_EACH = 5
"""In one request."""
ALONE_S = 5.0
LONG, SHORT = 200, 8
"""Words of a text."""
WORDS = [
    "the",
    "small",
    "house",
    "by",
    "river",
    "was",
    "old",
    "and",
    "people",
    "went",
    "there",
    "every",
    "day",
    "when",
    "some",
    "rain",
    "fell",
    "on",
    "its",
    "red",
    "roof",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=200, help="of each length (default: %(default)s)")
    parser.add_argument("--model", type=Path, help="that embeds, beside the default model's stream (default: that one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        flags = ["--socket", str(folder / "s"), "--http", "127.0.0.1:0", "--no-speculation"]
        if options.model is None:
            name, more = "default", ["--pooling", "mean"]
        else:
            name, more = options.model.stem, ["--models-dir", str(options.model.parent)]
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen([sys.executable, "-m", "umaserve", *flags, *more], stderr=log)
        try:
            print(_report(_address(folder / "log"), name, options.texts))
        finally:
            daemon.terminate()
            daemon.wait()


def _report(http: str, model: str, n_texts: int) -> str:
    rows = []
    _embed(http, model, LONG, 4)
    for words in (LONG, SHORT):
        rows.append([f"{words} words", "-", number(_embed(http, model, words, n_texts)), "", "", ""])
    with _Stream(http) as stream:
        time.sleep(ALONE_S)
        rows.append(["none", "yes", "", *stream.gaps_since(stream.begun)])
        for words in (LONG, SHORT):
            begun = time.monotonic()
            rate = _embed(http, model, words, n_texts)
            rows.append([f"{words} words", "yes", number(rate), *stream.gaps_since(begun)])
    return table(["texts", "stream", "texts/s", "gap p50", "p95", "max"], rows)


def _embed(http: str, model: str, words: int, n_texts: int) -> float:
    """The rate at which texts are embedded, per second."""
    source = random.Random(words)
    texts = [" ".join(source.choices(WORDS, k=words)) for _ in range(n_texts)]
    begun = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        bodies = [
            {"model": model, "input": texts[start : start + TEXTS_EACH]} for start in range(0, n_texts, TEXTS_EACH)
        ]
        for answer in pool.map(lambda body: _post(http, "/v1/embeddings", body).read(), bodies):
            assert json.loads(answer)["data"]
    return n_texts / (time.monotonic() - begun)


class _Stream:
    """An endless answer, asked for again when it ends, and when its tokens came."""

    def __init__(self, http: str) -> None:
        self._http = http
        self._ended = False
        self._arrivals: list[list[float]] = []
        self._thread = threading.Thread(target=self._read)
        self.begun = 0.0

    def __enter__(self) -> _Stream:
        self._thread.start()
        _until(lambda: any(self._arrivals))
        self.begun = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.join()

    def gaps_since(self, begun: float) -> list[str]:
        gaps = [gap for answer in self._arrivals for gap in itertools.pairwise(answer) if gap[1] >= begun]
        times = sorted(1000 * (later - earlier) for earlier, later in gaps)
        return [number(times[len(times) // 2]), number(times[len(times) * 95 // 100]), number(times[-1])]

    def _read(self) -> None:
        body = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}
        while not self._ended:
            self._arrivals.append([])
            with _post(self._http, "/v1/completions", body) as answer:
                for line in answer:
                    if self._ended:
                        return
                    if line.startswith(b"data: {"):
                        self._arrivals[-1].append(time.monotonic())


def _post(http: str, path: str, body: object) -> HTTPResponse:
    request = urllib.request.Request(f"http://{http}{path}", json.dumps(body).encode())
    answer: HTTPResponse = urllib.request.urlopen(request)
    return answer


def _address(log: Path) -> str:
    _until(lambda: "protocol=http" in log.read_text())
    (http,) = [line.split("at=")[1].split()[0] for line in log.read_text().splitlines() if "protocol=http" in line]
    _until(lambda: _ready(http))
    return http


def _ready(http: str) -> bool:
    try:
        return urllib.request.urlopen(f"http://{http}/health").status == HTTPStatus.OK
    except urllib.error.HTTPError:
        return False


def _until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
