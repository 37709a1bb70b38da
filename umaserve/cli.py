"""The command line: ``serve`` (the default), ``relay``, ``worker``, ``ask``, ``chat``, ``launch``, ``metrics``,
``keys``, ``models``, ``tune`` and ``doctor``."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from umaserve.client import Client, ServerError, Stream
from umaserve.commands import keys as keys_cli
from umaserve.commands.answering_model import another_model
from umaserve.commands.foreign_names import COMMANDS as FOREIGN_COMMANDS
from umaserve.commands.parser import Parser, loaded
from umaserve.core.errors import ConfigError
from umaserve.settings.daemon import SETTINGS
from umaserve.settings.sources import nearest, printable
from umaserve.system import systemd
from umaserve.system.descriptors import open_standard_streams
from umaserve.system.signals import handle_early
from umaserve.system.terminal import escaped
from umaserve.system.unix_sockets import path_to_call

if TYPE_CHECKING:
    from umaserve.settings.models import ModelSpec

_DESCRIPTION = """\
Serves GGUF models over a Unix socket, HTTP and WebSocket.

commands ("umaserve COMMAND --help" explains each):
  serve     run the daemon in the foreground; this is the default
  relay     run a relay: one address for many machines
  worker    connect an OpenAI-compatible server to a relay
  ask       send a prompt to a running daemon, and print the answer
  chat      have a conversation, with images, sound and speech
  launch    start a coding agent that talks to a running daemon
  metrics   print the metrics of a running daemon
  keys      make, list and revoke API keys
  pull      download a model
  models    list, remove, load and unload models
  tune      measure which settings are fastest on this machine
  doctor    say what is wrong with this machine, and what to do

examples:
  umaserve model.gguf
  umaserve ask "Why is the sky blue?"

A setting: flag, else variable (UMA_N_CTX), else file of --config, else default.
"""
_ABOUT_RELAY = """\
Takes OpenAI and Anthropic requests at one address, and passes each to a worker that offers its model. Workers connect
to the relay and share a secret with it.

example: a secret, a relay, a daemon as its worker, and a request
  openssl rand -hex 32 > secret; chmod 600 secret
  umaserve relay --listen 127.0.0.1:8090 --worker-secret-file secret &
  umaserve --socket /tmp/uma.sock --relay http://127.0.0.1:8090 --worker-secret-file secret &
  curl http://127.0.0.1:8090/v1/models

Clients from other machines need keys, which an operator makes over HTTP:
  openssl rand -hex 32 > token; chmod 600 token
  umaserve relay --listen 0.0.0.0:8090 --worker-secret-file secret --client-keys keys.json --admin-token-file token &
  curl http://127.0.0.1:8090/admin/keys -H "Authorization: Bearer $(cat token)" -H 'Content-Type: application/json' \\
      -d '{"name": "alice"}'
"""
_ABOUT_WORKER = """\
Connects to relays, and answers the requests that they pass on with an OpenAI-compatible server, the backend.

example: llama-server as the backend, which the worker offers at a relay with all its models
  llama-server -m model.gguf --port 8080 &
  umaserve worker --relay https://relay.example --worker-secret-file secret --backend http://127.0.0.1:8080
"""
_ABOUT_ASK = """\
Sends a prompt to a running daemon, and prints the answer as it is generated. Ctrl-C ends the answer.

examples:
  umaserve ask --socket /tmp/uma.sock "Why is the sky blue?"
  umaserve ask --temperature 0.8 --seed 7 --max-tokens 100 "Write a poem about the sea."
  umaserve ask - < question.txt
  umaserve ask --raw --max-tokens 3 "The capital of France is"
"""
_ABOUT_METRICS = """\
Prints the metrics of a running daemon, one per line. For Prometheus, a daemon with --http has them at /metrics.

examples:
  umaserve metrics --socket /tmp/uma.sock
  umaserve metrics --json | jq .tokens_generated_total
"""


ANSWER_S = 5.0
"""A daemon tells its metrics at once, however much it computes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    open_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {
        "serve": _serve,
        "relay": _relay,
        "worker": _worker,
        "ask": _ask,
        "chat": _chat,
        "launch": _launch,
        "metrics": _metrics,
        "keys": _keys,
        "models": _models,
        "pull": _pull,
        "tune": _tune,
        "doctor": _doctor,
    }
    command = arguments.pop(0) if _is_word(arguments) and not _is_model(arguments) else "serve"
    if command == "serve" and _is_model(arguments):
        arguments.insert(0, "--model")
    try:
        if command not in commands:
            here = FOREIGN_COMMANDS.get(command)
            hint = f": {here}" if here else nearest(command, commands)
            raise ConfigError(f"no command is named {printable(command)}{hint} (see umaserve --help)")
        return commands[command](arguments)
    except ConfigError as error:
        print(f"umaserve: {error}", file=sys.stderr)
        return 2
    except _ReaderLeftError:
        # Python would write what is left at its end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _is_word(arguments: Sequence[str]) -> bool:
    return bool(arguments) and not arguments[0].startswith("-")


def _is_model(arguments: Sequence[str]) -> bool:
    return _is_word(arguments) and arguments[0].endswith(".gguf")


def _serve(arguments: Sequence[str]) -> int:
    handle_early()
    # Imported here, as what follows: no client needs it.
    from umaserve.commands import own_daemon
    from umaserve.settings import models, tool_servers

    placed = functools.partial(own_daemon.with_own_places, environ=os.environ)
    found = loaded("umaserve", "[COMMAND] [FLAGS]", _DESCRIPTION, SETTINGS, arguments, placed=placed)
    if found is None:
        return 0
    read_catalogue = functools.partial(models.read, found.config, found.file)
    catalogue = read_catalogue()
    # Now rather than after minutes, and for another reason than what a service is restarted for.
    models.check_files(catalogue)
    tools = tool_servers.read(found.file)
    from umaserve.daemon.server import Server
    from umaserve.engine.template import chat_template
    from umaserve.remote.process import EngineProcess
    from umaserve.remote.voice import RemoteVoice

    def template(spec: ModelSpec) -> str | None:
        return chat_template.read(spec.config.chat_template) if spec.config.chat_template else None

    def new_engine(spec: ModelSpec) -> EngineProcess:
        return EngineProcess(template(spec), voice if spec is catalogue.default else None)

    # Better now than when it is needed first.
    for spec in catalogue.models:
        template(spec)
    config = catalogue.default.config
    voice = RemoteVoice(Path(config.tts_model).stem) if config.tts_model else None
    watched = config.log_format == "text" and not systemd.is_service()
    return Server(
        catalogue,
        new_engine,
        voice,
        read_catalogue,
        tool_servers=tools,
        http_is_optional=found.origins["http"] == own_daemon.ORIGIN,
        program=own_daemon.as_typed(os.environ) if watched else "",
    ).run()


def _models(arguments: Sequence[str]) -> int:
    from umaserve.commands import models as models_cli
    from umaserve.commands import served_models
    from umaserve.settings.models import read

    if arguments and arguments[0] in served_models.COMMANDS:
        parser = Parser("umaserve models", description=served_models.DESCRIPTION)
        return served_models.run(parser, arguments, _write)
    if arguments and arguments[0] == "remove":
        return models_cli.remove(arguments[1:], _write)
    found = loaded("umaserve models", "[FLAGS]", models_cli.DESCRIPTION, SETTINGS, arguments, models_cli.FIRST)
    if found is not None:
        _write(models_cli.listing(read(found.config, found.file)))
    return 0


def _relay(arguments: Sequence[str]) -> int:
    handle_early()
    # Imported here, as what follows: each command needs little of the others.
    from umaserve.relay.server import RelayServer
    from umaserve.settings.relay import SETTINGS as RELAY_SETTINGS

    found = loaded("umaserve relay", "[FLAGS]", _ABOUT_RELAY, RELAY_SETTINGS, arguments)
    return 0 if found is None else RelayServer(found.config).run()


def _worker(arguments: Sequence[str]) -> int:
    handle_early()
    from umaserve.settings.worker import SETTINGS as WORKER_SETTINGS
    from umaserve.worker.server import WorkerServer

    found = loaded("umaserve worker", "[FLAGS]", _ABOUT_WORKER, WORKER_SETTINGS, arguments)
    return 0 if found is None else WorkerServer(found.config).run()


def _client_parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = Parser(f"umaserve {command}", description=description)
    parser.add_argument(
        "--socket",
        metavar="PATH",
        default=os.environ.get("UMA_SOCK") or path_to_call(os.environ),
        help="the daemon's Unix socket (default: $UMA_SOCK, else yours in $XDG_RUNTIME_DIR, else /run/uma.sock)",
    )
    return parser


def _ask(arguments: Sequence[str]) -> int:
    parser = _client_parser("ask", _ABOUT_ASK)
    parser.add_argument("prompt", help='the question; "-" reads it from standard input')
    parser.add_argument("--model", metavar="NAME", help="the model that answers (default: the daemon's default one)")
    parser.add_argument("--raw", action="store_true", help="continue the text, without the model's chat template")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the question")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer in tokens (default: 512)")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 (the default): always the likeliest token")
    parser.add_argument("--seed", type=int, metavar="N", help="with a temperature: the same seed gives the same answer")
    parser.add_argument(
        "--stop", action="append", metavar="TEXT", help="end the answer before this text; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print the daemon's events as JSON, one per line")
    options = parser.parse_args(arguments)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    names = ("model", "max_tokens", "temperature", "seed", "stop")
    request: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
    if not options.raw:
        request["chat"] = [{"role": "system", "content": options.system}] if options.system else True
    try:
        if options.model:
            _say_who_answers(options.socket, options.model)
        with Client(options.socket).generate(prompt, **request) as stream:
            interrupt = _Interrupt(stream)
            if not stream.wait(ANSWER_S):
                # It may well wait for others, or for the model.
                _check_that_it_answers(options.socket)
            _print_stream(stream, raw_events=options.json)
    except ServerError as error:
        return _refused(error)
    except OSError as error:
        return _unreachable(options.socket, error)
    return interrupt.status


def _say_who_answers(path: str, model: str) -> None:
    """Warn where no model has this name. Raises as ``Client.metrics``."""
    told = Client(path, timeout=ANSWER_S).metrics().get("models", {})
    if warning := another_model(model, {name: one.get("aliases", ()) for name, one in told.items()}):
        print(f"umaserve: {warning}", file=sys.stderr)


def _print_stream(stream: Stream, *, raw_events: bool) -> None:
    for event in stream:
        _write(orjson.dumps(event).decode() + "\n" if raw_events else event["text"])
    _write(orjson.dumps(stream.end).decode() + "\n" if raw_events else "\n")


def _check_that_it_answers(path: str) -> None:
    """Raises OSError where no daemon that speaks framed JSON does. One that refuses speaks it too."""
    with contextlib.suppress(ServerError):
        Client(path, timeout=ANSWER_S).metrics()


class _Interrupt:
    """Ctrl-C asks the server for the end, wherever it strikes; a second one ends this program."""

    def __init__(self, stream: Stream) -> None:
        self.status = 0
        """For this program to end with."""
        self._stream = stream
        signal.signal(signal.SIGINT, self._cancel)

    def _cancel(self, _number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.status = 128 + signal.SIGINT
        # Where the connection is gone, whoever reads from it finds that out.
        with contextlib.suppress(OSError):
            self._stream.cancel()


class _ReaderLeftError(Exception):
    """Whoever read our output, such as head, has seen enough."""


def _write(text: str) -> None:
    try:
        # Models, too, may write what steers a terminal; a pipe gets all as it is.
        sys.stdout.write(escaped(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise _ReaderLeftError from None


def _chat(arguments: Sequence[str]) -> int:
    # Imported here: no other command needs numpy.
    from umaserve.commands.chat import chat as chat_cli

    parser = Parser("umaserve chat", description=chat_cli.DESCRIPTION)
    return chat_cli.run(parser, arguments, _write)


def _launch(arguments: Sequence[str]) -> int:
    # Imported here: no other command knows agents.
    from umaserve.commands import launch

    return launch.run(Parser("umaserve launch", description=launch.DESCRIPTION), arguments, _write)


def _metrics(arguments: Sequence[str]) -> int:
    parser = _client_parser("metrics", _ABOUT_METRICS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        event = Client(options.socket, timeout=ANSWER_S).metrics()
    except ServerError as error:
        return _refused(error)
    except OSError as error:
        return _unreachable(options.socket, error)
    if options.json:
        _write(orjson.dumps(event).decode() + "\n")
        return 0
    del event["event"]
    for name, values in event.pop("models", {}).items():
        values = {**values, "aliases": ", ".join(values["aliases"])} if "aliases" in values else values
        event |= {f"models.{name}.{key}": value for key, value in values.items()}
    width = max(map(len, event))
    _write("".join(f"{name:<{width}}  {value}\n" for name, value in event.items()))
    return 0


def _keys(arguments: Sequence[str]) -> int:
    parser = Parser("umaserve keys", description=keys_cli.DESCRIPTION)
    return keys_cli.run(parser, arguments)


def _pull(arguments: Sequence[str]) -> int:
    # Imported here: no other command downloads anything.
    from umaserve.commands import pull as pull_cli

    return pull_cli.run(arguments, _write)


def _tune(arguments: Sequence[str]) -> int:
    # Imported here: no other command measures anything.
    from umaserve.commands import tune as tune_cli

    parser = Parser("umaserve tune", description=tune_cli.DESCRIPTION)
    return tune_cli.run(parser, arguments, _write)


def _doctor(arguments: Sequence[str]) -> int:
    # Imported here: no other command looks at all that.
    from umaserve.commands import doctor as doctor_cli

    return doctor_cli.run(arguments, _write)


def _refused(error: ServerError) -> int:
    print(f"umaserve: {escaped(str(error))}", file=sys.stderr)
    return 1


def _unreachable(path: str, error: OSError) -> int:
    if isinstance(error, TimeoutError):
        advice = "is it a daemon with --protocol json, and is it still running?"
        print(f"umaserve: {path}: no answer within {ANSWER_S:g} s: {advice}", file=sys.stderr)
        return 1
    advice = "is the daemon running there? Name its socket with --socket or UMA_SOCK"
    print(f"umaserve: {path}: {error.strerror or error}: {advice}", file=sys.stderr)
    return 1
