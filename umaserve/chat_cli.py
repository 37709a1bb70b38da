"""``umaserve chat``: a conversation in the terminal over ``/ws/chat``, turn by turn, its speech into a WAV file."""

from __future__ import annotations

import argparse
import base64
import contextlib
import socket
import sys
import urllib.parse
import wave
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from umaserve.net.tls import client_context
from umaserve.protocol.websocket import WebSocketCodec
from umaserve.protocol.websocket_handshake import HandshakeFailed, check_accept, client_handshake, read_answer

DESCRIPTION = "Chat with a running daemon that serves HTTP, turn by turn. Ctrl-C ends an answer, Ctrl-D the chat."
EPILOG = """\
  umaserve --socket /tmp/uma.sock --http 127.0.0.1:8080 &
  umaserve chat
  umaserve chat --speak answer.wav "Tell me about the sea in two sentences."
"""
DEFAULT_URL = "http://127.0.0.1:8080"
MAX_MESSAGE_BYTES = 1 << 30
SAMPLE_RATE = 24_000
_READ = 64 * 1024
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}

Write = Callable[[str], None]
Message = dict[str, Any]


class ChatError(Exception):
    """The daemon can't be reached, or says that something is wrong."""


def run(parser: argparse.ArgumentParser, arguments: Sequence[str], write: Write) -> int:
    """Chat; ``write`` prints at once. Returns the exit status."""
    parser.add_argument("prompt", nargs="?", help="one question, which is all then; without it they are asked for")
    parser.add_argument("--url", default=DEFAULT_URL, help="where the daemon serves HTTP (default: %(default)s)")
    parser.add_argument("--key", help="API key, where the daemon wants one")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the first question")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: 0.7)")
    parser.add_argument("--speak", metavar="FILE", help="have the answers spoken, into this WAV file")
    options = parser.parse_args(arguments)
    messages: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
    with contextlib.ExitStack() as opened:
        try:
            wav = opened.enter_context(_wav(options.speak)) if options.speak else None
            for prompt in [options.prompt] if options.prompt else _prompts():
                messages.append({"role": "user", "content": prompt})
                answer = _turn(options, messages, write, wav)
                messages.append({"role": "assistant", "content": answer})
        except (ChatError, OSError) as error:
            print(f"umaserve: {error}", file=sys.stderr)
            return 1
    return 0


@contextlib.contextmanager
def _wav(path: str) -> Iterator[wave.Wave_write]:
    """A WAV file for the answers: mono, 16 bit."""
    with open(path, "wb") as file, wave.open(file) as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(SAMPLE_RATE)
        yield wav


def _prompts() -> Iterator[str]:
    """What is typed, or comes through a pipe, a line each."""
    shown = "> " if sys.stdin.isatty() else ""
    if shown:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  what is typed can be edited
    while True:
        try:
            prompt = input(shown)
        except EOFError:
            return
        if prompt.strip():
            yield prompt


def _turn(options: argparse.Namespace, messages: Sequence[Message], write: Write, wav: wave.Wave_write | None) -> str:
    """Ask, print the answer as it comes, and return it: what came of it, where Ctrl-C ended it."""
    generation = {"max_new_tokens": options.max_tokens, "temperature": options.temperature}
    request: Message = {"messages": messages, "generation": {k: v for k, v in generation.items() if v is not None}}
    if wav is not None:
        request["tts"] = {"mode": "audio_assistant"}
    said: list[str] = []
    try:
        for message in _ask(options.url, options.key, request):
            match message["type"]:
                case "chunk":
                    said.append(message["text_delta"])
                    write(message["text_delta"])
                    if wav is not None and message["audio_data"] is not None:
                        samples = np.frombuffer(base64.b64decode(message["audio_data"]), "<f4")
                        wav.writeframes((samples * 32767).astype("<i2").tobytes())
                case "error":
                    raise ChatError(message["error"])
    except KeyboardInterrupt:
        if options.prompt:
            raise
    write("\n")
    return "".join(said)


def _ask(url: str, key: str | None, request: Message) -> Iterator[Message]:
    """The daemon's messages, up to its goodbye."""
    codec = WebSocketCodec(MAX_MESSAGE_BYTES, client=True)
    with _connected(url) as sock:
        parts = urllib.parse.urlsplit(url)
        headers = [("Authorization", f"Bearer {key}")] if key else []
        handshake, nonce = client_handshake(parts.netloc, f"{parts.path.rstrip('/')}/ws/chat", headers)
        sock.sendall(handshake)
        received = b""
        try:
            while (answer := read_answer(received)) is None:
                received += _some(sock)
            status, answered, rest = answer
            check_accept(status, answered, nonce)
        except HandshakeFailed as error:
            raise ChatError(f"{url}: {error}: is it a daemon of this version, and is the key right?") from None
        sock.sendall(codec.send(orjson.dumps(request)))
        codec.receive_data(rest)
        while True:
            while (payload := codec.next_payload()) is not None:
                yield orjson.loads(payload)
            sock.sendall(codec.take_output())
            if codec.closed:
                return
            if not codec.more:
                codec.receive_data(_some(sock))


def _connected(url: str) -> socket.socket:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ChatError(f"--url: expected one such as {DEFAULT_URL}, got {url}")
    try:
        sock = socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]))
    except OSError as error:
        advice = "start a daemon with --http, or name its address with --url"
        raise ChatError(f"{url}: {error.strerror or error}: {advice}") from None
    if parts.scheme in ("https", "wss"):
        return client_context().wrap_socket(sock, server_hostname=parts.hostname)
    return sock


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(_READ)
    if not data:
        raise ChatError("the daemon closed the connection before the end of its answer")
    return data
