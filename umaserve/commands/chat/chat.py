"""``umaserve chat``: a conversation in the terminal over ``/ws/chat``, or with tools over OpenAI's API; speech goes
into a WAV file."""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import re
import socket
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Sequence

import orjson

from umaserve.commands.answering_model import another_model
from umaserve.commands.chat import media
from umaserve.commands.chat.input import ChatError, Conversation, Message, questions
from umaserve.commands.chat.mcp_servers import Servers, connected, read_servers
from umaserve.commands.chat.media import FileError
from umaserve.commands.chat.speech import SpeechFile
from umaserve.commands.chat.status import Status
from umaserve.commands.chat.tools import Approvals, turn_with_tools
from umaserve.commands.http_call import DEFAULT_URL, CallError, call
from umaserve.net.tls import client_context
from umaserve.system.terminal import escaped
from umaserve.wire.pcm import pcm16
from umaserve.wire.websocket import CloseCode, WebSocketCodec
from umaserve.wire.websocket_handshake import HandshakeFailed, check_accept, client_handshake, read_answer

DESCRIPTION = """\
Has a conversation with a running daemon that serves HTTP. With a prompt it asks once; without one it reads a question
per line, or several lines between \"\"\". Ctrl-C ends an answer, Ctrl-D the conversation.

examples:
  umaserve &
  umaserve chat
  umaserve chat --speak answer.wav "Tell me about the sea in two sentences."
  umaserve chat --image before.jpg --image after.jpg "What has changed?"
  umaserve chat --audio meeting.mp3 "What was decided?"
  umaserve chat --voice me.wav --speak answer.wav "Say good morning with my voice."
  umaserve chat --mcp servers.json "What is in notes.txt?"

Images, audio and video need a model that understands them, and its projector (umaserve --mmproj). In a conversation,
the line "/image photo.jpg" attaches a file to the next question; so do /audio and /video. /help lists all commands.
"""
MAX_MESSAGE_BYTES = 1 << 30
TICK_S = 1.0
_CHUNK = 64 * 1024
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_ENDED = "the connection ended before the answer did"

Write = Callable[[str], None]


def run(parser: argparse.ArgumentParser, arguments: Sequence[str], write: Write) -> int:
    """Chat; ``write`` must print at once. Returns the exit status."""
    parser.add_argument("prompt", nargs="?", help="the only question; without it they are read from stdin")
    parser.add_argument("--url", default=DEFAULT_URL, help="where the daemon serves HTTP (default: %(default)s)")
    parser.add_argument("--key", help="API key, if the daemon has --api-keys")
    parser.add_argument("--model", metavar="NAME", help="the model that answers (default: the daemon's default one)")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the first question")
    for kind in media.KINDS:
        # One list, so that the files keep the order of their flags.
        parser.add_argument(
            f"--{kind}", dest="files", action="append", default=[], metavar="FILE",
            type=functools.partial(_named, kind),
            help=f"{_A_KIND[kind]} for the first question; may be repeated",
        )  # fmt: skip
    parser.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer in tokens (default: 512)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest token (default: 0.7)")
    parser.add_argument("--speak", metavar="FILE", help="write the answers as speech into this WAV file")
    parser.add_argument("--voice", metavar="FILE", help="with --speak: a recording of the voice to speak with")
    parser.add_argument("--mcp", metavar="FILE", help="MCP servers whose tools the model may call")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="TOOL",
        help="with --mcp: run this tool without asking; may be repeated",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.voice and not options.speak:
        parser.error("--voice: expected --speak FILE too, which gets the speech")
    if options.mcp and (options.speak or options.files):
        parser.error("--mcp: expected neither files nor --speak beside it")
    if options.allow and not options.mcp:
        parser.error("--allow: expected --mcp FILE too, which has the tool")
    conversation = Conversation(options.model, options.system)
    try:
        conversation.attached += [media.item(*file) for file in options.files]
        tts = _tts(options)
        with contextlib.ExitStack() as stack:
            speech = stack.enter_context(SpeechFile(options.speak)) if options.speak else None
            tools = stack.enter_context(_tools(options)) if options.mcp else None
            known: set[str | None] = {None}
            for prompt in [options.prompt] if options.prompt else questions(conversation):
                if conversation.model not in known:
                    known.add(conversation.model)
                    _look_for_model(options, conversation.model or "")
                question = {"role": "user", "content": _content(prompt, conversation.attached)}
                conversation.attached.clear()
                try:
                    if tools is None:
                        turns = _turn(options, conversation, question, tts, write, speech)
                    else:
                        turns = turn_with_tools(options, conversation, question, *tools, write)
                except ChatError as error:
                    if options.prompt or not sys.stdin.isatty():
                        raise
                    # The question is dropped from the conversation; another one can be asked.
                    _complain(error)
                else:
                    conversation.turns += turns
    except (ChatError, FileError, OSError) as error:
        _complain(error)
        return 1
    return 0


@contextlib.contextmanager
def _tools(options: argparse.Namespace) -> Iterator[tuple[Servers, Approvals]]:
    """The servers of ``--mcp``, connected, and who is asked for their calls."""
    with connected(read_servers(options.mcp)) as servers:
        if unknown := [name for name in options.allow if name not in servers.tools]:
            listed = ", ".join(servers.tools) or "none"
            raise ChatError(f"--allow: no tool is named {unknown[0]}: the servers have {listed}")
        watched = sys.stdin.isatty()
        if watched:
            print(escaped(f"tools: {', '.join(servers.tools) or 'none'}"), file=sys.stderr)
        yield servers, Approvals(options.allow, input if watched else None)


def _complain(error: Exception) -> None:
    print(f"umaserve: {escaped(str(error))}", file=sys.stderr)


def _look_for_model(options: argparse.Namespace, name: str) -> None:
    """Say which model answers where none has this ``name``. Where they can't be listed, the question finds out why."""
    try:
        listed = call(re.sub("^ws", "http", options.url), options.key, "GET", "/v1/models")["data"]
        warning = another_model(name, {one["id"]: one.get("aliases", ()) for one in listed})
    except (CallError, KeyError, TypeError, AttributeError):
        return
    if warning:
        print(f"umaserve: {warning}", file=sys.stderr)


def _named(kind: str, path: str) -> tuple[str, str]:
    return kind, path


_A_KIND = {"image": "an image file", "audio": "a sound file", "video": "a video file"}


def _tts(options: argparse.Namespace) -> Message | None:
    """The request's ``tts``; ``None`` where no speech is wanted."""
    if not options.speak:
        return None
    if not options.voice:
        return {"mode": "audio_assistant"}
    return {"mode": "voice_cloning", "ref_audio_data": media.sound(options.voice)}


def _content(prompt: str, attached: Sequence[Message]) -> str | list[Message]:
    return [*attached, {"type": "text", "text": prompt}] if attached else prompt


def _turn(
    options: argparse.Namespace,
    conversation: Conversation,
    question: Message,
    tts: Message | None,
    write: Write,
    speech: SpeechFile | None,
) -> list[Message]:
    """Ask, and print the answer as it comes. Returns the question and the answer; where Ctrl-C ended it, what came."""
    generation = {"max_new_tokens": options.max_tokens, "temperature": options.temperature}
    request: Message = {
        "messages": conversation.asking(question),
        "generation": {k: v for k, v in generation.items() if v is not None},
    }
    if conversation.model is not None:
        request["model"] = conversation.model
    if tts is not None:
        request["tts"] = tts
    said: list[str] = []
    try:
        with Status(sys.stderr) as status:
            for message in _ask(options.url, options.key, request, status):
                match message["type"]:
                    case "queued" | "queue_update":
                        status.queued(message["position"], message["queue_length"], message["estimated_wait_s"])
                    case "queue_done":
                        status.begin("the daemon computes the prompt")
                    case "prefill_done":
                        status.clear()
                    case "chunk":
                        said.append(message["text_delta"])
                        write(message["text_delta"])
                        if speech is not None and message["audio_data"] is not None:
                            speech.write(pcm16(base64.b64decode(message["audio_data"])))
    except KeyboardInterrupt:
        if options.prompt:
            raise
    except ChatError:
        if said:
            write("\n")
        raise
    write("\n")
    return [question, {"role": "assistant", "content": "".join(said)}]


def _ask(url: str, key: str | None, request: Message, status: Status) -> Iterator[Message]:
    """The daemon's messages until it closes the connection; raises ``ChatError`` with its error."""
    codec = WebSocketCodec(MAX_MESSAGE_BYTES, client=True)
    with _told(url), _connected(url) as sock:
        # Receiving times out regularly, to update the status line.
        sock.settimeout(TICK_S)
        parts = urllib.parse.urlsplit(url)
        headers = [("Authorization", f"Bearer {key}")] if key else []
        handshake, nonce = client_handshake(parts.netloc, f"{parts.path.rstrip('/')}/ws/chat", headers)
        sock.sendall(handshake)
        received = b""
        try:
            while (answer := read_answer(received)) is None:
                data = _some(sock, status)
                if not data:
                    raise ChatError(f"{url}: {_ENDED}")
                received += data
            code, answered, rest = answer
            check_accept(code, answered, nonce)
        except HandshakeFailed as error:
            raise ChatError(f"{url}: {error}: check the version of the daemon, and the key") from None
        codec.receive_data(rest)
        _send(sock, codec.send(orjson.dumps(request)), status)
        status.begin("the daemon computes the prompt")
        message: Message = {"type": None}
        while True:
            while (payload := codec.next_payload()) is not None:
                message = orjson.loads(payload)
                if message["type"] != "error":
                    yield message
            if codec.closed:
                break
            sock.sendall(codec.take_output())
            if not codec.more:
                data = _some(sock, status)
                if not data:
                    break
                codec.receive_data(data)
    if message["type"] == "error":
        # Raised only now: the close frame after the error says what kind of error it is.
        raise ChatError(message["error"] + _advice(codec))
    if message["type"] != "done":
        reason = codec.close_reason or (_ENDED if codec.close_code is None else f"close code {codec.close_code}")
        raise ChatError(f"the daemon did not answer: {reason}{_advice(codec)}")


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Raise a broken connection's error as ``ChatError``."""
    try:
        yield
    except OSError as error:
        raise ChatError(f"{url}: {error.strerror or error}: is the daemon still running?") from None


def _send(sock: socket.socket, data: bytes, status: Status) -> None:
    status.begin(f"sending {len(data) / (1 << 20):.1f} MiB")
    view = memoryview(data)
    sent = 0
    try:
        while sent < len(data):
            with contextlib.suppress(TimeoutError):
                sent += sock.send(view[sent : sent + _CHUNK])
            status.tick(f"{sent / len(data):.0%}")
    except OSError:
        # The daemon refuses the rest; it may have sent the reason.
        return


def _advice(codec: WebSocketCodec) -> str:
    if codec.close_code == CloseCode.MESSAGE_TOO_BIG:
        return ": send smaller files, or fewer, or have the daemon take more with --max-chat-bytes"
    return ""


def _connected(url: str) -> socket.socket:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ChatError(f"--url: expected a URL such as {DEFAULT_URL}, got {url}")
    try:
        sock = socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]))
    except OSError as error:
        advice = "start a daemon with --http, or name its address with --url"
        raise ChatError(f"{url}: {error.strerror or error}: {advice}") from None
    if parts.scheme in ("https", "wss"):
        return client_context().wrap_socket(sock, server_hostname=parts.hostname)
    return sock


def _some(sock: socket.socket, status: Status) -> bytes:
    """The next bytes received; empty at the end."""
    while True:
        try:
            return sock.recv(_CHUNK)
        except TimeoutError:
            status.tick()
