"""Coding agents, unmodified, in a small repository that is made for them: what each is called with, and what must come
of it. ``scripts/agents`` installs them, and runs this as a program, which prints a table."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon import Daemon
from recording_proxy import Recorded, recording
from scripted_daemon import Call, Script

ROOT = Path(__file__).parents[2]
INSTALLED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "umaserve-tests/agents")
"""``scripts/agents`` installs them there, with the versions of ``tests/end_to_end/agents/package.json``."""
RUN_S = 120
MODEL_RUN_S = 1200
PRESSED_AGAIN_S = 10
CONTEXT = 65536
FLAGS = ("--n-ctx", str(CONTEXT), "--max-prompt-bytes", "4194304", "--max-frame-bytes", "8388608")
"""Room for the first requests of all agents."""
FLAGS_FOR_A_MODEL = ("--n-ctx", "32768", *FLAGS[2:])
"""Room for one of them: a model may be trained for no more."""
BEFORE, AFTER = "print('hello')\n", "print('hello world')\n"
NOTES = "Greetings are short."
TASK = "Have hello.py greet the world."
DONE = "It greets the world now."
AGAIN = "It still does."
COMPLAINTS = re.compile(
    r"(?i)malformed|could not parse|failed to parse|parse error|invalid json|unexpected token|type.?error"
)
"""What a program says that can't read an answer."""
MANY_REQUESTS = 12
"""More than an agent needs to go on with a conversation that was too long."""


@dataclass(frozen=True)
class Agent:
    """How an agent is called without a terminal, and how its tools are."""

    name: str
    """As ``umaserve launch`` knows it."""
    program: str
    """Path below ``INSTALLED``, where ``*`` stands for the platform."""
    ask: Callable[[str], list[str]]
    """Arguments for a task."""
    go_on: Callable[[str], list[str]]
    """Arguments for a second task in the same conversation."""
    read: Callable[[Path], Call]
    edit: Callable[[Path], Call]
    """A call that makes ``AFTER`` of ``BEFORE``."""
    run: Callable[[str], Call]
    """A call of a command for the shell."""
    missing: str = r"(?i)no such file|not found|does not exist"
    """What its tool answers where a file is missing."""
    tells_changes: bool = False
    """Whether each run of it tells the model, before all messages, what has changed in the repository: the first
    request of a later run shares with those before only what is before that."""

    @property
    def path(self) -> Path | None:
        """The program; ``None`` where it isn't installed."""
        return next(iter(sorted(INSTALLED.glob(self.program))), None)

    @property
    def version(self) -> str:
        told = subprocess.run(
            [str(self.path), "--version"], capture_output=True, text=True, timeout=RUN_S, stdin=subprocess.DEVNULL
        )
        found = re.search(r"\d+\.\d+\.\d+", told.stdout)
        return found[0] if found else "unknown"


def _claude(*more: str) -> Callable[[str], list[str]]:
    return lambda task: ["-p", *more, "--permission-mode", "acceptEdits", task]


def _codex(*more: str) -> Callable[[str], list[str]]:
    # A container has no sandbox of its own, and the script's calls are ours.
    return lambda task: ["exec", *more, "--dangerously-bypass-approvals-and-sandbox", task]


def _codex_edit(file: Path) -> Call:
    patch = f"*** Begin Patch\n*** Update File: {file.name}\n@@\n-{BEFORE}+{AFTER}*** End Patch\n"
    return "exec_command", {"cmd": f"apply_patch <<'EOF'\n{patch}EOF\n"}


def _opencode(*more: str) -> Callable[[str], list[str]]:
    return lambda task: ["run", *more, task]


def _qwen(*more: str) -> Callable[[str], list[str]]:
    return lambda task: [*more, "--approval-mode", "yolo", "-p", task]


AGENTS = [
    Agent(
        "claude",
        "node_modules/@anthropic-ai/claude-code-*/claude",
        _claude(),
        _claude("--continue"),
        lambda file: ("Read", {"file_path": str(file)}),
        lambda file: ("Edit", {"file_path": str(file), "old_string": BEFORE, "new_string": AFTER}),
        lambda command: ("Bash", {"command": command, "description": "Looks"}),
    ),
    Agent(
        "codex",
        "node_modules/.bin/codex",
        _codex(),
        _codex("resume", "--last"),
        lambda file: ("exec_command", {"cmd": f"cat {file.name}"}),
        _codex_edit,
        lambda command: ("exec_command", {"cmd": command}),
    ),
    Agent(
        "opencode",
        "node_modules/opencode-*/bin/opencode",
        _opencode(),
        _opencode("--continue"),
        lambda file: ("read", {"filePath": str(file)}),
        lambda file: ("edit", {"filePath": str(file), "oldString": BEFORE, "newString": AFTER}),
        lambda command: ("bash", {"command": command, "description": "Looks"}),
    ),
    Agent(
        "qwen",
        "node_modules/.bin/qwen",
        _qwen(),
        _qwen("--continue"),
        lambda file: ("read_file", {"file_path": str(file)}),
        lambda file: ("edit", {"file_path": str(file), "old_string": BEFORE, "new_string": AFTER}),
        lambda command: ("run_shell_command", {"command": command, "is_background": False}),
        tells_changes=True,
    ),
]
"""Those with tools. aider has none: ``AIDER`` has what it is called with."""


class Workplace:
    """A repository, a home, and programs for agents, all in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.repository, self._home, self._programs = (folder / name for name in ("repository", "home", "bin"))
        for made in (self.repository, self._home, self._programs):
            made.mkdir()
        for agent in AGENTS:
            if agent.path is not None:
                (self._programs / agent.name).symlink_to(agent.path)
        self.file = self.repository / "hello.py"
        self.file.write_text(BEFORE)
        self.notes = self.repository / "notes.txt"
        self.notes.write_text(NOTES)
        own = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")
        for arguments in (("init", "-q"), ("add", "."), (*own, "commit", "-qm", "Greet")):
            subprocess.run(["git", *arguments], cwd=self.repository, check=True)

    def start(self, agent: Agent, url: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """``umaserve launch``, in a group of its own."""
        kept = {name: os.environ[name] for name in ("LANG", "PYTHONPATH", "TMPDIR") if name in os.environ}
        variables = {"HOME": str(self._home), "PATH": f"{self._programs}:{os.environ['PATH']}", **kept}
        return subprocess.Popen(
            [sys.executable, "-m", "umaserve", "launch", agent.name, "--url", url, "--", *arguments],
            cwd=self.repository, env=variables, start_new_session=True, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, agent: Agent, url: str, arguments: Sequence[str], seconds: float = RUN_S) -> tuple[int, str]:
        """The agent's status, and all it has written."""
        started = self.start(agent, url, arguments)
        with _ended(started):
            try:
                written, _ = started.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                written = started.communicate()[0]
                raise AssertionError(f"it does not end within {seconds:g} s:\n{written[-2000:]}") from None
        return started.returncode, written


@contextlib.contextmanager
def _ended(started: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no program of the group behind."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


class World:
    """A workplace, and a daemon with a script."""

    def __init__(self, agent: Agent, daemon: Daemon, script: Script, folder: Path) -> None:
        self.agent = agent
        self.daemon = daemon
        self.script = script
        self.place = Workplace(folder)
        self.runs: list[list[Recorded]] = []
        """What each run that ended well has asked of the daemon."""
        script.clear()

    def told(self, arguments: Sequence[str]) -> str:
        """What the agent writes when it ends well. All of its requests must have been served, and what it was told
        must have been read."""
        with recording(self.daemon.http) as proxy:
            status, written = self.place.run(self.agent, proxy.url, arguments)
        assert status == 0, f"it ends with status {status}:\n{written[-2000:]}\n{proxy.recorded}"
        assert proxy.recorded, f"it asked nothing:\n{written[-2000:]}"
        bad = [one for one in proxy.recorded if not 200 <= one.status < 300]
        assert not bad, bad
        assert not (found := COMPLAINTS.search(written)), f"{found}:\n{written[-2000:]}"
        assert not self.script.left, f"it did not ask for {self.script.left} answers:\n{written[-2000:]}"
        self.runs.append(proxy.recorded)
        return written

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The conversation as the last request with tools had it."""
        last: list[dict[str, Any]] = [one for one in self.script.requests if one["tools"]][-1]["turns"]
        return last


def edits_a_file(world: World) -> None:
    """Five calls, two of them at once and one that fails, change a file; each result is in the next request. A second
    task goes on with the conversation, whose prompt begins like the one before."""
    agent, script, file = world.agent, world.script, world.place.file
    script.add("I look.\n", agent.read(file))
    script.add("", agent.edit(file))
    script.add("Both at once.\n", agent.read(file), agent.read(world.place.notes))
    script.add("", agent.read(file.with_name("nothing.py")))
    script.add(DONE)
    assert DONE in world.told(agent.ask(TASK))
    assert file.read_text() == AFTER
    asked = [one for one in script.requests if one["tools"]]
    assert [len(_results(one["turns"])) for one in asked] == [0, 1, 2, 4, 5]
    _check_ids(world.turns)
    look, edit, first, second, missing = _results(world.turns)
    assert "print('hello')" in look
    assert edit
    assert "hello world" in first, first
    assert NOTES in second, second
    assert re.search(agent.missing, missing), missing
    script.clear()
    script.add(AGAIN)
    before = world.daemon.metrics()["prefix_reused_tokens_total"]
    assert AGAIN in world.told(agent.go_on("Does it?"))
    [*_, last] = [one for one in script.requests if one["tools"]]
    reused = world.daemon.metrics()["prefix_reused_tokens_total"] - before
    assert len(_results(last["turns"])) == 5
    least = 0.5 if agent.tells_changes else 0.9
    assert reused > least * last["prompt_tokens"], f"{reused} of {last['prompt_tokens']} prompt tokens reused"


def _results(turns: Sequence[dict[str, Any]]) -> list[str]:
    return [turn["content"] for turn in turns if turn["role"] == "tool"]


def _check_ids(turns: Sequence[dict[str, Any]]) -> None:
    called = [call["id"] for turn in turns for call in turn["tool_calls"]]
    answered = [turn["tool_call_id"] for turn in turns if turn["role"] == "tool"]
    assert answered == called, f"calls {called}, results for {answered}"


def leaves_in_mid_answer(world: World) -> None:
    """Ctrl-C ends the generation at its next token."""
    world.script.add("It goes on and on", slow=True)
    before = world.daemon.metrics()["tokens_generated_total"]
    with recording(world.daemon.http) as proxy:
        started = world.place.start(world.agent, proxy.url, world.agent.ask(TASK))
        with _ended(started):
            world.daemon.wait_for(lambda v: v["tokens_generated_total"] > before + 30, RUN_S)
            _interrupt(started)
    world.daemon.wait_until_quiet()


def _interrupt(started: subprocess.Popen[str]) -> None:
    """Press Ctrl-C until the agent ends: it may miss one, as opencode does on a busy box."""
    for _ in range(RUN_S // PRESSED_AGAIN_S):
        os.killpg(started.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.communicate(timeout=PRESSED_AGAIN_S)
            return
    raise AssertionError(f"it does not end within {RUN_S} s of Ctrl-C")


def sees_a_full_context(world: World) -> None:
    """A conversation that is too long is said to be: the agent stops and says so, or makes it shorter. The same prompt
    is not sent again."""
    world.script.add("", world.agent.run("echo much"))
    world.script.add("", overflow=True)
    for _ in range(MANY_REQUESTS):
        world.script.add(DONE)
    with recording(world.daemon.http) as proxy:
        status, written = world.place.run(world.agent, proxy.url, world.agent.ask(TASK))
    bad = [one for one in proxy.recorded if one.status >= 300]
    assert [one.status for one in bad] == [400], f"{bad}, status {status}:\n{written[-2000:]}"
    _, refused, *later = [one["turns"] for one in world.script.requests if one["tools"]]
    assert refused not in later, "it sends again what was too long"
    assert later or re.search(r"(?i)context|too long", written), f"status {status}:\n{written[-2000:]}"


SCENARIOS: dict[str, Callable[[World], str | None]] = {
    "edits": edits_a_file,
    "cancel": leaves_in_mid_answer,
    "overflow": sees_a_full_context,
}


def missing(agent: Agent) -> str:
    """What its tests lack; empty if nothing."""
    if shutil.which("git") is None:
        return "there is no git"
    if agent.path is None:
        return f"there is no {agent.name} in {INSTALLED}: scripts/agents installs it where it has npm and its registry"
    return ""


def scripted(folder: Path, *flags: str) -> tuple[Daemon, Script]:
    """A daemon that answers by a script, with more ``flags``."""
    script = Script(folder / "script")
    variables = {
        "SCRIPT": str(folder / "script"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", "")]),
    }
    program = ("-m", "scripted_daemon")
    return Daemon(folder, "--http", "127.0.0.1:0", *FLAGS, *flags, env=variables, program=program), script


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def answers_twice(world: World) -> str:
    """Two tasks for a real model; returns how long each took, and what was computed for it."""
    agent, daemon, told = world.agent, world.daemon, []
    for arguments in (agent.ask("Say what hello.py prints. Read it first."), agent.go_on("Say it again.")):
        before, began = daemon.metrics(), time.monotonic()
        with recording(daemon.http) as proxy:
            status, written = world.place.run(agent, proxy.url, arguments, MODEL_RUN_S)
        assert status == 0, f"status {status}: {written[-500:]}"
        bad = [one for one in proxy.recorded if one.status >= 300]
        assert proxy.recorded, written[-500:]
        assert not bad, bad
        assert not (found := COMPLAINTS.search(written)), f"{found}: {written[-500:]}"
        after = daemon.wait_until_quiet()
        computed, reused = (
            after[name] - before[name] for name in ("prompt_tokens_total", "prefix_reused_tokens_total")
        )
        seconds = time.monotonic() - began
        told.append(f"{seconds:.0f} s, {len(proxy.recorded)} requests, {computed} tokens computed, {reused} reused")
    return "; ".join(told)


MODEL_SCENARIOS: dict[str, Callable[[World], str | None]] = {"model": answers_twice}


def _row(agent: Agent, name: str, daemon: Daemon, script: Script, folder: Path) -> tuple[str, str, str, str]:
    """Version, scenario, outcome, and why."""
    if lacks := missing(agent):
        return "", name, "skipped", lacks
    folder.mkdir()
    try:
        told = (SCENARIOS | MODEL_SCENARIOS)[name](World(agent, daemon, script, folder)) or ""
    except AssertionError as error:
        return agent.version, name, "FAILED", " ".join(str(error).split())[:300]
    return agent.version, name, "passed", told


def main(arguments: Sequence[str]) -> int:
    """Run all scenarios, or with ``--model FILE.gguf`` two tasks for that model; prints a table."""
    parser = argparse.ArgumentParser(prog="scripts/agents", description=main.__doc__)
    parser.add_argument("--model", metavar="FILE", help="a model that answers, instead of a script")
    parser.add_argument("agents", nargs="*", metavar="AGENT", help="only these")
    options = parser.parse_args(arguments)
    chosen = [agent for agent in AGENTS if not options.agents or agent.name in options.agents]
    rows = [("agent", "version", "scenario", "outcome", "")]
    with tempfile.TemporaryDirectory(prefix="umaserve-agents-") as made:
        folder = Path(made)
        if options.model:
            # Nobody takes anything from this script.
            script = Script(folder / "script")
            daemon = Daemon(folder, "--model", options.model, "--http", "127.0.0.1:0", *FLAGS_FOR_A_MODEL)
        else:
            daemon, script = scripted(folder)
        try:
            for agent, name in itertools.product(chosen, MODEL_SCENARIOS if options.model else SCENARIOS):
                rows.append((agent.name, *_row(agent, name, daemon, script, folder / f"{agent.name}-{name}")))
                print(*rows[-1], file=sys.stderr, flush=True)
        finally:
            daemon.stop()
    print(table(rows), end="")
    return any(row[3] == "FAILED" for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
