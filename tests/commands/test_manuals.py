"""The man pages and completions that ``scripts/manuals.py`` makes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from umaserve.settings.daemon import SETTINGS
from umaserve.settings.relay import SETTINGS as RELAY
from umaserve.settings.sources import Settings

ROOT = Path(__file__).parents[2]
COMMANDS = ("ask", "chat", "doctor", "keys", "launch", "metrics", "models", "pull", "relay", "tune", "worker")

BASH = """
. "$1"
COMP_WORDS=($2 "$3"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_umaserve
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manuals")
    command = [sys.executable, ROOT / "scripts" / "manuals.py", folder]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=120)
    return folder


def said(*command: str | Path) -> str:
    """What a program prints, where it is installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}: scripts/peers installs it")
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    return done.stdout


def test_each_command_has_a_page(made: Path) -> None:
    pages = {path.name for path in (made / "man").iterdir()}
    assert pages >= {"umaserve.1", *(f"umaserve-{command}.1" for command in COMMANDS)}


@pytest.mark.parametrize(("name", "settings"), [("umaserve", SETTINGS), ("umaserve-relay", RELAY)])
def test_a_page_has_every_flag_with_its_variable(made: Path, name: str, settings: Settings[Any]) -> None:
    page = (made / "man" / f"{name}.1").read_text().replace("\\-", "-")
    for one in settings.by_key.values():
        assert f"\n\\fB{one.flag}\\fR" in page
        assert f"environment {one.env})" in page


def test_examples_keep_their_lines(made: Path) -> None:
    page = (made / "man" / "umaserve-relay.1").read_text()
    assert "\n.SH EXAMPLE\n.nf\n  openssl rand \\-hex 32 > secret; chmod 600 secret\n  umaserve relay" in page
    assert "\n.SH SEE ALSO\n.BR umaserve (1) ,\n" in page


def test_groff_has_nothing_to_say_about_the_pages(made: Path) -> None:
    for path in sorted((made / "man").iterdir()):
        assert said("groff", "-man", "-Tutf8", "-ww", "-z", path) == "", path.name


@pytest.mark.parametrize(
    ("shell", "name"), [("bash", "umaserve.bash"), ("zsh", "_umaserve"), ("fish", "umaserve.fish")]
)
def test_shells_read_their_completions(made: Path, shell: str, name: str) -> None:
    assert said(shell, "-n", made / "completions" / name) == ""


@pytest.mark.parametrize(
    ("before", "typed", "completed"),
    [
        ("umaserve", "--no-pa", ["--no-page"]),
        ("umaserve", "re", ["relay"]),
        ("umaserve --weights", "", ["fast", "as-is", "converted", "mapped"]),
        ("umaserve relay", "--lis", ["--listen"]),
        ("umaserve keys", "", ["add", "convert", "list", "revoke"]),
        ("umaserve keys add", "--cl", ["--class"]),
        ("umaserve models", "lo", ["load"]),
        ("umaserve --model", "/etc/host", [f"/etc/{path.name}" for path in Path("/etc").glob("host*")]),
    ],
)
def test_bash_completes(made: Path, before: str, typed: str, completed: list[str]) -> None:
    found = said("bash", "-c", BASH, "bash", made / "completions" / "umaserve.bash", before, typed)
    assert sorted(found.splitlines()) == sorted(completed)


def test_fish_says_what_a_flag_does_in_a_few_words(made: Path) -> None:
    found = said("fish", "-c", 'source $argv[1]; complete -C "umaserve --n-ct"', made / "completions" / "umaserve.fish")
    assert found == "--n-ctx\tKV cells for all sequences together\n"
