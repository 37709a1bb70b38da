"""llama.cpp's own server, to compare with; LLAMA_SERVER names the program."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

READY_S = 120


class LlamaServer:
    """Serves one model on four slots; ``more`` are flags of its own."""

    def __init__(self, program: str, model: str, log: Path, *more: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.origin = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = self.origin.rpartition(":")[2]
        exact = ("-ctk", "f32", "-ctv", "f32", "-fa", "off", "--kv-unified")
        flags = ("-c", "2048", "-np", "4", "-t", "1", "--no-warmup", "--port", port, *exact, *more)
        with log.open("wb") as out:
            self._process = subprocess.Popen([program, "-m", model, *flags], stdout=out, stderr=out)
        deadline = time.monotonic() + READY_S
        while not self._ready():
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def answer(self, prompt: Sequence[int], max_tokens: int = 12, *, reuse: bool = True) -> tuple[list[int], int]:
        """The greedy answer, and how many tokens of the prompt were reused."""
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "return_tokens": True}
        reply = self._post("/completion", body | {"cache_prompt": reuse})
        return reply["tokens"], reply["timings"]["cache_n"]

    def chat(self, messages: Sequence[dict[str, Any]], max_tokens: int = 12) -> tuple[int, list[int], list[float]]:
        """How many tokens the prompt of a conversation has, and the greedy answer with the logarithms of its tokens'
        probabilities."""
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "logprobs": True}
        reply = self._post("/v1/chat/completions", body)
        scored = reply["choices"][0]["logprobs"]["content"]
        logprobs = [one["logprob"] for one in scored]
        return reply["usage"]["prompt_tokens"], [one["id"] for one in scored], logprobs

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        content = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.origin}{path}", json.dumps(body).encode(), content)
        with urllib.request.urlopen(request, timeout=READY_S) as response:
            return json.load(response)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.origin}/health", timeout=READY_S):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False
