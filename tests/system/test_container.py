"""The container's files: what they name is there, and both say the same."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import pytest

from umaserve.cli import main
from umaserve.settings.daemon import SETTINGS

ROOT = Path(__file__).parents[2]
CONTAINERFILE, QUADLET = ROOT / "Containerfile", ROOT / "conf" / "umaserve.container"


def instructions(name: str) -> list[str]:
    """What each instruction of this name in the Containerfile says, on one line."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [" ".join(line.split()[1:]) for line in text.splitlines() if line.split()[:1] == [name]]


def container(key: str) -> list[str]:
    """Every value of the key in the quadlet."""
    lines = QUADLET.read_text().splitlines()
    return [value for found, _, value in (line.partition("=") for line in lines) if found == key]


def variables() -> dict[str, str]:
    (shown,) = instructions("ENV")
    return dict(pair.split("=", 1) for pair in shown.split())


def test_the_images_settings_are_valid_and_need_no_more() -> None:
    own = {name: value for name, value in variables().items() if name.startswith("UMA_")}
    assert len(own) == 3
    assert SETTINGS.load({}, own).config.http == "127.0.0.1:8080"
    assert instructions("EXPOSE") == ["8080"]


@pytest.mark.parametrize("file", [CONTAINERFILE, QUADLET], ids=lambda file: file.name)
def test_settings_that_they_name_exist(file: Path) -> None:
    text = file.read_text()
    named = set(re.findall(r"\bUMA_[A-Z_]+", text))
    assert named
    assert named <= {setting.env for setting in SETTINGS.by_key.values()} | {"UMA_CONFIG"}
    flags = re.findall(r"^#.* umaserve --([a-z-]+)", text, flags=re.MULTILINE)
    assert {flag.replace("-", "_") for flag in flags} <= set(SETTINGS.by_key)


def test_it_is_not_root_and_writes_only_to_volumes() -> None:
    (user,) = instructions("USER")
    number, _, group = user.partition(":")
    assert int(number) > 0
    assert int(group) > 0
    making = " ".join(instructions("RUN"))
    assert f"useradd --system --uid {number} " in making
    assert f"groupadd --system --gid {group} umaserve" in making
    volumes = json.loads(instructions("VOLUME")[0])
    assert f"install -d -o umaserve -g umaserve -m 0750 {' '.join(volumes)}" in making
    written = [variables()["UMA_SOCK"], variables()["UMA_WEIGHTS_CACHE"]]
    assert all(any(path.startswith(f"{volume}/") for volume in volumes) for path in written)
    assert container("ReadOnly") == ["true"]
    assert container("DropCapability") == ["all"]
    assert {volume.split(":")[1] for volume in container("Volume") if not volume.endswith(":ro")} == set(volumes)
    assert not container("User")


def test_it_is_installed_from_the_wheels_with_extras_that_exist() -> None:
    assert "dist/*.whl /wheels/" in instructions("COPY")
    assert any('--find-links /wheels "umaserve[$EXTRAS]"' in line for line in instructions("RUN"))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    (extras,) = (line.partition("=")[2] for line in instructions("ARG") if line.startswith("EXTRAS="))
    assert set(extras.split(",")) <= set(setup["options.extras_require"])


def test_it_counts_as_unhealthy_where_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = instructions("HEALTHCHECK")
    program, *arguments = json.loads(check.partition("CMD ")[2])
    assert program == "umaserve"
    assert container("HealthCmd") == [" ".join([program, *arguments])]
    monkeypatch.setenv("UMA_SOCK", str(tmp_path / "uma.sock"))
    assert main(arguments) == 1


def test_the_manager_waits_longer_than_the_daemon_drains() -> None:
    drain = SETTINGS.load({}, {}).config.drain_timeout
    (stop,) = (int(value.removeprefix("--stop-timeout=")) for value in container("PodmanArgs"))
    assert drain < stop < int(container("TimeoutStopSec")[0])
    assert container("RestartPreventExitStatus") == ["2"]
