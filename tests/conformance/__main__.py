"""Tries others' clients and test suites beside a real daemon, and writes ``docs/results/works-with.md``.

``python -m tests.conformance [SUITE...] [--model FILE.gguf] [--cache FOLDER]``; without names, all. What has been found
before of other suites stays on the page: ``results.json`` beside this file is the record. What is in no registry of
packages is taken from a checkout: ``OPEN_RESPONSES`` names that of github.com/openresponses/openresponses,
``JSON_SCHEMA_BENCH`` that of github.com/guidance-ai/jsonschemabench.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conformance import reports
from tests.conformance.installing import CantInstall, Place, installed
from tests.conformance.reasons import ABSENT
from tests.conformance.rows import PAGE, RECORD, Row, dumps, loads, page
from tests.conformance.suites import CLIENTS, ROOT, SUITES, Suite
from umaserve.settings.model_files import default_model

sys.path.insert(0, str(ROOT / "tests/support"))
from daemon import Daemon

DEFAULT_MODEL = "SmolLM2-135M-Instruct.Q4_1"
OLLAMAS_MODELS = ("llama3.2", "qwen3:0.6b")
"""Names in Ollama's tests that any model may have."""
HANGS_S = 3600


def main() -> None:
    arguments = _arguments()
    for suite in SUITES:
        if arguments.suites and suite.name not in arguments.suites:
            continue
        # Tests of this repository know the default model's answers.
        model = arguments.model if suite.kind in ("client", "calls") else None
        print(f"trying {suite.name}", file=sys.stderr, flush=True)
        row = _tried(suite, model, arguments.cache)
        print(row.not_tried or row.groups, file=sys.stderr, flush=True)
        _record(row)


def _record(new: Row) -> None:
    """Puts a row into the record, in place of an older one, and writes the page."""
    rows = {(row.program, row.model): row for row in loads(RECORD.read_text())} if RECORD.exists() else {}
    rows[new.program, new.model] = new
    ordered = []
    for suite in SUITES:
        tried = [row for row in rows.values() if row.program == suite.name and row.date]
        ordered += tried or [Row(suite.name, not_tried="no run is recorded")]
    RECORD.write_text(dumps(ordered))
    PAGE.write_text(page(ordered))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(suite.name for suite in SUITES))
    parser.add_argument(
        "--model", type=Path, metavar="FILE.gguf", help="for the clients, in place of the default model"
    )
    parser.add_argument("--cache", type=Path, default=_cache(), metavar="FOLDER", help="where they are installed")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"SUITE: expected one of those that --help lists, got {', '.join(sorted(unknown))}")
    return arguments


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umaserve-conformance"


def _tried(suite: Suite, model: Path | None, cache: Path) -> Row:
    """The row of a suite that has been run now, or the reason why it could not."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    row = Row(suite.name, model="" if suite.kind == "schemas" else _name(model), date=today)
    if suite.kind == "calls" and model is None:
        return Row(suite.name, date=today, not_tried="needs --model, which calls tools")
    try:
        place = installed(suite, cache)
    except CantInstall as reason:
        return Row(suite.name, date=today, not_tried=str(reason))
    with tempfile.TemporaryDirectory(prefix="conformance-") as made:
        folder = Path(made)
        match suite.kind:
            case "go":
                cases = _go(suite, place, folder)
            case "compliance":
                cases = _compliance(place, folder)
            case "llama-server":
                cases = _llama_server(suite, place, folder)
            case _:
                cases = _pytest(suite, place, model, folder)
    return reports.with_cases(dataclasses.replace(row, version=place.version), cases, suite.reasons)


def _pytest(suite: Suite, place: Place, model: Path | None, folder: Path) -> list[reports.Case]:
    report, output = folder / "report.xml", folder / "output"
    command = [str(place.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    variables = {**os.environ, "UMA_CLIENTS": str(place.folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    where = ROOT
    if suite.kind == "schemas":
        variables["CONFORMANCE_SCHEMAS"] = str(place.folder)
    if suite.kind == "calls":
        variables |= {"CONFORMANCE_BFCL": str(place.folder), "CONFORMANCE_GGUF": str(model)}
    with contextlib.ExitStack() as ended:
        if suite.kind == "client":
            # Of this repository they know the files of their folder only.
            variables.pop("PYTHONPATH", None)
            daemon = _serving(folder, model)
            ended.callback(daemon.stop)
            variables |= {"CONFORMANCE_URL": f"http://{daemon.http}", "CONFORMANCE_MODEL": _name(model)}
            variables |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
            command += ["-c", "pytest.ini", "--rootdir", "."]
            where = CLIENTS
        with output.open("wb") as log:
            subprocess.run(
                [*command, *suite.tests], cwd=where, env=variables, stdout=log, stderr=log, timeout=HANGS_S, check=False
            )
    if not report.exists():
        return [reports.Case("", "pytest", "failed", output.read_text()[-300:])]
    return reports.of_junit(report.read_text())


def _go(suite: Suite, place: Place, folder: Path) -> list[reports.Case]:
    settings = folder / "umaserve.toml"
    settings.write_text(
        f'model = "{DEFAULT_MODEL}"\n[models."{DEFAULT_MODEL}"]\n'
        f"path = {json.dumps(default_model())}\naliases = {json.dumps(OLLAMAS_MODELS)}\n"
    )
    daemon = _serving(folder, None, "--config", str(settings))
    names = f"^({'|'.join(suite.tests)})$"
    command = ["go", "test", "-json", "-count=1", "-timeout=50m", "-tags=integration", "-run", names, "./integration"]
    variables = {"OLLAMA_TEST_EXISTING": "1", "OLLAMA_HOST": daemon.http, "OLLAMA_TEST_DEFAULT_MODEL": "default"}
    try:
        written = _written(command, place, **variables)
    finally:
        daemon.stop()
    cases = reports.of_go(written)
    return [case._replace(outcome="skipped") if re.search(ABSENT, case.why) else case for case in cases]


def _compliance(place: Place, folder: Path) -> list[reports.Case]:
    daemon = _serving(folder, None)
    bun = place.folder / "node_modules/.bin/bun"
    asked = ["--base-url", f"http://{daemon.http}/v1", "--api-key", "none", "--model", "default", "--json"]
    try:
        written = _written([bun, "run", "bin/compliance-test.ts", *asked], place)
    finally:
        daemon.stop()
    return reports.of_compliance(written)


def _written(command: Sequence[str | Path], place: Place, **variables: str) -> str:
    """What a suite writes, whatever its exit status."""
    environment = {**os.environ, **variables}
    ended = subprocess.run(
        command, cwd=place.folder, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    return ended.stdout


def _llama_server(suite: Suite, place: Place, folder: Path) -> list[reports.Case]:
    server, report = folder / "llama-server", folder / "report.xml"
    path, python = shlex.quote(str(ROOT)), shlex.quote(sys.executable)
    server.write_text(f'#!/bin/sh\nexec env PYTHONPATH={path} {python} -m tests.conformance.as_llama_server "$@"\n')
    server.chmod(0o755)
    variables = {**os.environ, "LLAMA_SERVER_BIN_PATH": str(server), "TMPDIR": str(folder)}
    with socket.create_server(("127.0.0.1", 0)) as free:
        variables["PORT"] = str(free.getsockname()[1])
    variables.pop("PYTHONPATH", None)
    command = [place.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *suite.tests]
    with (folder / "output").open("wb") as log:
        subprocess.run(command, cwd=place.folder, env=variables, stdout=log, stderr=log, timeout=HANGS_S, check=False)
    return reports.of_junit(report.read_text())


def _serving(folder: Path, model: Path | None, *more: str) -> Daemon:
    flags = ["--http", "127.0.0.1:0", "--no-speculation", "--pooling", "mean", "--n-ctx", "16384", *more]
    return Daemon(folder, *flags, *(["--model", str(model)] if model else []))


def _name(model: Path | None) -> str:
    return model.stem if model else DEFAULT_MODEL


if __name__ == "__main__":
    main()
