"""``umaserve launch``: starts a coding agent that talks to a running daemon."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from umaserve.commands.agents import AGENTS, NO_KEY, Agent, Served, Setup
from umaserve.commands.answering_model import another_model
from umaserve.commands.http_call import DEFAULT_URL, CallError, call
from umaserve.settings.sources import printable
from umaserve.system import folders

DESCRIPTION = """\
Starts a coding agent that talks to a running daemon, and to nobody else: Claude Code, Codex, opencode, Qwen Code or
aider. The agent keeps its files in a folder of its own; those of yours are neither read nor changed. What stands behind
"--" is the agent's.

examples:
  umaserve launch claude
  umaserve launch codex -- exec "Explain this repository."
  umaserve launch opencode --model qwen3-8b
  umaserve launch qwen --print
"""
SEPARATOR = "--"
_MARK = "END_OF_FILE"

Write = Callable[[str], None]


def run(parser: argparse.ArgumentParser, arguments: Sequence[str], write: Write) -> int:
    """Fill ``parser`` and start the agent in place of this program; returns an exit status where there is none, or with
    ``--print``."""
    parser.add_argument("agent", metavar="{" + ",".join(AGENTS) + "}", choices=AGENTS, help="the agent to start")
    parser.add_argument("--url", default=DEFAULT_URL, help="where the daemon serves HTTP (default: %(default)s)")
    parser.add_argument("--key", help="API key, if the daemon has --api-keys")
    parser.add_argument("--model", metavar="NAME", help="the model that answers (default: the daemon's default one)")
    parser.add_argument(
        "--print", dest="only_print", action="store_true", help="print the commands for a shell instead, and end"
    )
    split = arguments.index(SEPARATOR) if SEPARATOR in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    agent = AGENTS[options.agent]
    try:
        served = _served(options)
        folder = folders.state(os.environ) / "agents" / options.agent
        setup = agent.setup(served, folder)
        command = [agent.program, *setup.arguments, *arguments[split + 1 :]]
        if options.only_print:
            write(for_shell(folder, setup, command))
            return 0
        if shutil.which(agent.program) is None:
            return _fail(f"there is no program {agent.program}: install it with {agent.installed_by}")
        _write_files(folder, setup)
    except CallError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or 'the agent has no folder'}: {error.strerror or error}")
    _say_what_starts(agent, served)
    os.execvpe(agent.program, command, _environment(setup, os.environ))


def _served(options: argparse.Namespace) -> Served:
    """The model that answers; raises ``CallError``."""
    url = options.url.rstrip("/")
    if url.startswith("unix:"):
        raise CallError(f"--url: expected a URL such as {DEFAULT_URL}, which agents can call, got {url}")
    told = call(url, options.key, "GET", "/v1/models")
    try:
        listed = told["data"]
        names = {one["id"]: one.get("aliases", ()) for one in listed}
        name = options.model or next(iter(names))
        if warning := another_model(name, names):
            print(f"umaserve: {warning}", file=sys.stderr)
        [one, *_] = [one for one in listed if name in (one["id"], *one.get("aliases", ()))] or listed
        return Served(url, options.key or NO_KEY, one["id"], int(one["context_length"]))
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
        raise CallError(f"{url}: what answers there is another server, or an older umaserve") from None


def _write_files(folder: Path, setup: Setup) -> None:
    """Raises ``OSError``."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, text in setup.files.items():
        path.write_text(text)


def _environment(setup: Setup, environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in setup.unset} | dict(setup.variables)


def _say_what_starts(agent: Agent, served: Served) -> None:
    context = f"{served.context_tokens:,} tokens"
    print(
        f"umaserve: {agent.program} talks to {printable(served.model)} at {served.url}, whose context has {context}",
        file=sys.stderr,
    )
    if served.context_tokens < 2 * agent.first_turn_tokens:
        advice = "choose a model that was trained for more, or a larger --n-ctx"
        first = f"its first request may have {agent.first_turn_tokens:,} tokens"
        print(f"umaserve: {first}, which leaves little room or none: {advice}", file=sys.stderr)


def for_shell(folder: Path, setup: Setup, command: Sequence[str]) -> str:
    """Commands for a shell that do what ``umaserve launch`` does."""
    lines = [f"mkdir -p -m 700 {shlex.quote(str(folder))}"]
    for path, text in setup.files.items():
        lines += [f"cat > {shlex.quote(str(path))} << '{_MARK}'", f"{text}{_MARK}"]
    lines += [f"unset {name}" for name in setup.unset]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in setup.variables.items()]
    return "\n".join([*lines, shlex.join(command)]) + "\n"


def _fail(problem: str) -> int:
    print(f"umaserve: {problem}", file=sys.stderr)
    return 1
