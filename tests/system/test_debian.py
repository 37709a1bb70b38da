"""The parts of the Debian package. ``scripts/test-deb`` installs a whole one, which takes minutes."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from umaserve import __version__

ROOT = Path(__file__).parents[2]
DEBIAN, CONF = ROOT / "debian", ROOT / "conf"
UNITS = sorted([*CONF.glob("*.service"), *CONF.glob("*.socket")])


def paragraphs() -> list[email.message.Message]:
    return [email.message_from_string(text) for text in (DEBIAN / "control").read_text().split("\n\n")]


def run(*command: str | Path) -> str:
    """What a program prints, where it is installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} on this machine")
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_control_describes_one_package() -> None:
    source, package = paragraphs()
    assert source["Source"] == package["Package"] == "umaserve"
    assert package["Architecture"] == "any", "llama.cpp is compiled"
    depends = package["Depends"].split(", ")
    assert {"${misc:Depends}", "${python:Depends}", "${shlibs:Depends}"} <= set(depends)
    assert any("/bin/kill" in unit.read_text() for unit in UNITS)
    assert "procps" in depends, "it has the units' /bin/kill"


def test_the_newest_entry_of_the_changelog_is_of_this_version() -> None:
    entry = (DEBIAN / "changelog").read_text().splitlines()[0]
    assert re.fullmatch(rf"umaserve \({re.escape(__version__)}-\d+\) \w+; urgency=\w+", entry)
    assert f"\nVersion: {__version__}-" in run("dpkg-parsechangelog", "-l", DEBIAN / "changelog")


def test_the_copyright_has_the_licence_of_the_project() -> None:
    words = (ROOT / "LICENSE").read_text().partition("\n\n")[2].partition("\n\n")[2].split()
    told = (DEBIAN / "copyright").read_text().split()
    assert " ".join(words) in " ".join(word for word in told if word != ".")


@pytest.mark.parametrize("unit", [unit.name for unit in UNITS] + ["umaserve.sysusers", "umaserve.tmpfiles"])
def test_what_systemd_gets_is_that_of_conf(unit: str) -> None:
    links = {path.resolve() for path in DEBIAN.iterdir() if path.is_symlink()}
    assert CONF / unit in links


def test_every_unit_is_named_to_debhelper() -> None:
    rules = (DEBIAN / "rules").read_text()
    for unit in UNITS:
        assert re.search(rf"dh_installsystemd .*(?<= )({unit.name}|--name={unit.stem}\b)", rules), unit.name


def test_every_override_of_lintian_has_a_reason() -> None:
    lines = (DEBIAN / "umaserve.lintian-overrides").read_text().splitlines()
    assert lines[0].startswith("# ")
    overrides = [line for line in lines if not line.startswith("# ")]
    assert all(re.fullmatch(r"umaserve: [a-z-]+ \*.*", line) for line in overrides)


@pytest.mark.parametrize(
    "script",
    ["debian/umaserve.postinst", "debian/umaserve.prerm", "debian/umaserve.postrm", "scripts/deb", "scripts/test-deb"],
)
def test_scripts_are_of_the_standard_shell(script: str) -> None:
    assert run("dash", "-n", ROOT / script) == ""
    assert "\nset -e" in (ROOT / script).read_text(), "a failure ends it"


@pytest.mark.parametrize(
    ("script", "arguments", "asked"),
    [
        ("postinst", ["configure", ""], "start umaserve.service"),
        (
            "postinst", ["configure", "0.1.0-1"],
            "try-restart umaserve.service umaserve-relay.service umaserve-worker.service",
        ),
        ("prerm", ["upgrade", "0.1.0-2"], ""),
        ("prerm", ["remove"], "stop " + " ".join(sorted(unit.name for unit in UNITS))),
    ],
)  # fmt: skip
def test_an_upgrade_restarts_what_runs_and_closes_no_socket(
    script: str, arguments: list[str], asked: str, tmp_path: Path
) -> None:
    """With a stand-in for systemd, which writes down what it is asked."""
    text = (DEBIAN / f"umaserve.{script}").read_text().replace("/run/systemd/system", str(tmp_path))
    (tmp_path / "deb-systemd-invoke").write_text('#!/bin/sh\necho "$@"\nexit 1\n')
    (tmp_path / "deb-systemd-invoke").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", text, script, *arguments], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    action, *units = done.stdout.split() or [""]
    assert " ".join([action, *(sorted(units) if action == "stop" else units)]) == asked


def test_rules_can_be_read() -> None:
    assert "-m venv --without-pip" in run("make", "-C", ROOT, "-n", "-f", "debian/rules", "override_dh_auto_install")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes users and gives them folders")
def test_the_folders_are_the_users_alone_and_as_the_unit_has_them(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    run("systemd-sysusers", f"--root={tmp_path}", CONF / "umaserve.sysusers")
    run("systemd-tmpfiles", f"--root={tmp_path}", "--create", CONF / "umaserve.tmpfiles")
    user, _, uid, *_, shell = (tmp_path / "etc" / "passwd").read_text().strip().split(":")
    assert (user, shell) == ("umaserve", "/usr/sbin/nologin")
    service = (CONF / "umaserve.service").read_text()
    for kind, above in (("State", "lib"), ("Cache", "cache")):
        found = (tmp_path / "var" / above / "umaserve").stat()
        assert (found.st_uid, f"0{found.st_mode & 0o777:o}") == (int(uid), "0700")
        assert f"\n{kind}Directory=umaserve\n{kind}DirectoryMode=0700\n" in service
