"""``--help`` and ``--help-all`` of the commands."""

from __future__ import annotations

import pytest

from umaserve.cli import main
from umaserve.settings.daemon import SETTINGS
from umaserve.settings.relay import SETTINGS as RELAY
from umaserve.settings.worker import SETTINGS as WORKER

SCREEN = 40
"""Lines of a terminal that is 80 columns wide."""

PROGRAMS = {"serve": SETTINGS, "relay": RELAY, "worker": WORKER}


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(
    "command",
    [
        "",
        "serve",
        "relay",
        "worker",
        "ask",
        "chat",
        "launch",
        "metrics",
        "keys",
        "keys add",
        "models",
        "pull",
        "tune",
        "doctor",
    ],
)
def test_help_fits_a_screen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(shown(capsys, *command.split(), "--help").splitlines()) <= SCREEN


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_has_what_matters_first_alone(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    brief = shown(capsys, program, "--help")
    *_, options = brief.partition("\noptions:\n")
    flags = [line.split()[0].rstrip(",") for line in options.splitlines() if line.startswith("  -")]
    first = [PROGRAMS[program].by_key[key].flag for key in PROGRAMS[program].first]
    assert flags == [*first, "--config", "-h", "--print-config", "--version"]


@pytest.mark.parametrize("program", [*PROGRAMS, "models"])
def test_help_all_has_every_flag(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, program, "--help-all").splitlines()
    flags = {line.split()[0].rstrip(",") for line in lines if line.startswith("  --")}
    settings = PROGRAMS.get(program, SETTINGS)
    assert flags >= {one.flag for one in settings.by_key.values()} | {"--config", "--print-config", "--version"}


def test_a_flag_that_help_does_not_show_is_taken_and_suggested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--print-config", "--max-queue", "64"]) == 0
    assert "max_queue = 64 " in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main(["--max-quue", "64"])
    assert left.value.code == 2
    assert "did you mean --max-queue?" in capsys.readouterr().err
