"""``umaserve doctor``: what it finds, and how it says it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_models import tiny_model

from umaserve.cli import main
from umaserve.commands import findings
from umaserve.commands.doctor import lines
from umaserve.commands.findings import Finding, beside_gpus, compared, of_box, of_build, of_model, of_sockets
from umaserve.engine.llama import backends
from umaserve.settings.daemon import Config
from umaserve.settings.model_files import default_model
from umaserve.settings.models import ModelSpec
from umaserve.system import clock, devices, ports, program, systemd
from umaserve.system.cores import instructions
from umaserve.system.memory import UNKNOWN_BYTES

BUILD = {"features": ["AVX2", "FMA", "OPENMP"], "uses_gpus": False, "repacks": True}


def wanted() -> bool:
    return True


def level_of(about: str, found: list[Finding]) -> str:
    (level,) = {one.level for one in found if one.about == about}
    return level


def test_a_healthy_box_has_nothing_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not backends.may_repack():
        pytest.skip("this box isn't healthy: the compiler of its llama.cpp breaks AMX")
    flags = ["doctor", "--socket", str(tmp_path / "uma.sock"), "--http", "127.0.0.1:0", "--max-sessions", "8"]
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert out.endswith("Nothing is wrong.\n")
    # Where the processor has these instructions, doctor can't tell whether the build leaves them out.
    assert ("AVX512-FP16" if "avx512_fp16" in instructions() else "llama.cpp uses") in out
    assert main([*flags, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["wrong"] == 0
    assert {"processor", "build", "clock"} <= {one["about"] for one in document["findings"]}


def test_the_exit_status_says_that_something_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"not a model")
    assert main(["doctor", "--socket", str(tmp_path / "none" / "uma.sock"), "--model", str(model)]) == 1
    out = capsys.readouterr().out
    assert "its folder does not exist" in out
    assert "not a GGUF file" in out
    assert out.splitlines()[-1].endswith(" checks have found something wrong.")


def test_a_build_without_the_processors_instructions_is_wrong() -> None:
    found = compared(BUILD, frozenset({"avx2", "fma", "avx512bw"}))
    assert (found.level, "without AVX512," in found.found) == ("wrong", True)
    assert "--no-binary" in found.advice
    assert compared(BUILD, frozenset({"avx2"})).level == "ok"


def test_compilers_faults_are_told() -> None:
    assert compared({**BUILD, "repacks": False}, frozenset()).level == "wrong"
    assert compared(BUILD, frozenset({"avx512_fp16"})).level == "note"


def test_a_gpu_that_the_build_cannot_use_is_wrong() -> None:
    found = beside_gpus(BUILD, ["/dev/nvidia0"])
    assert (found.level, "GGML_CUDA" in found.advice) == ("wrong", True)
    assert "GGML_HIP" in beside_gpus(BUILD, ["/dev/kfd"]).advice
    assert beside_gpus({**BUILD, "uses_gpus": True}, ["/dev/nvidia0"]).level == "ok"
    assert beside_gpus(BUILD, []).level == "ok"


def test_a_build_that_cannot_run_ends_only_the_program_that_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_arguments: object, **_settings: object) -> bytes:
        raise program.ProgramError("ended by Illegal instruction: no message")

    monkeypatch.setattr(program, "run", run)
    (found,) = of_build(wanted)
    assert found.level == "wrong"
    assert "Illegal instruction" in found.found


def test_sockets_that_others_hold_are_told(tmp_path: Path) -> None:
    held, file = tmp_path / "held.sock", tmp_path / "file"
    file.touch()
    with socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:
        unix.bind(str(held))
        unix.listen()
        port = tcp.getsockname()[1]
        found = list(of_sockets(Config(socket=str(held), http_socket=str(file), http=f"127.0.0.1:{port}")))
        assert level_of(f"socket {held}", found) == "note"
        assert level_of(f"socket {file}", found) == "wrong"
        (address,) = (one for one in found if one.about == f"address 127.0.0.1:{port}")
        assert f"process {os.getpid()} listens there" in address.found
    found = list(of_sockets(Config(socket=str(held), http=f"127.0.0.1:{port}")))
    assert {one.level for one in found} == {"ok"}, "one that nobody serves is replaced"


def test_the_folder_for_computed_prompts_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(folder: Path, size: int = 1 << 20) -> tuple[str, str]:
        of_all = of_box(Config(kv_cache=str(folder), kv_cache_bytes=size))
        (one,) = [one for one in of_all if one.about.startswith("folder")]
        return one.level, one.found

    assert found(tmp_path / "new" / "folder")[0] == "ok"
    assert found(tmp_path, 1 << 40)[0] == "note"
    (tmp_path / "file").touch()
    assert found(tmp_path / "file" / "folder") == ("wrong", f"{tmp_path}/file is not a folder")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert found(tmp_path / "open") == ("wrong", "others may write to it")
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    assert found(tmp_path) == ("note", "it belongs to another user")


def test_a_certificate_that_cannot_be_read_is_wrong(tmp_path: Path) -> None:
    config = Config(
        socket=str(tmp_path / "s"), http="127.0.0.1:0", tls_cert=str(tmp_path / "c"), tls_key=str(tmp_path / "k")
    )
    assert level_of("TLS", list(of_sockets(config))) == "wrong"


def test_a_model_that_does_not_fit_is_wrong_with_what_to_do() -> None:
    spec = ModelSpec("big", Config(model=default_model(), n_ctx=1 << 20))
    contents, memory = of_model(spec, 1 << 30, wanted)
    assert contents.level == "note", "its template has no tools"
    assert (memory.level, "1024 MiB are available" in memory.found) == ("wrong", True)
    assert memory.advice.startswith("lower --n-ctx (1048576)")


def test_a_model_is_judged_where_nothing_tells_the_memory() -> None:
    spec = ModelSpec("small", Config(model=default_model(), n_ctx=1024))
    _, memory, _ = of_model(spec, UNKNOWN_BYTES, wanted)
    assert memory.level == "ok"
    assert memory.found.endswith(" MiB; the available memory is unknown")


def test_a_model_that_generates_no_text_needs_no_template(tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "embeds.gguf", "bert")
    first, memory, _ = of_model(ModelSpec("embeds", Config(model=path, n_ctx=512)), 1 << 34, wanted)
    assert (first.level, first.found) == ("ok", "bert, F32: it is for embeddings or rankings, and generates no text")
    assert memory.level == "ok"


def test_the_context_is_told_as_it_will_be() -> None:
    *_, context = of_model(ModelSpec("m", Config(model=default_model(), n_ctx=1024)), 1 << 34, wanted)
    found = "a sequence may have 1024 tokens; 1024 KV cells for 16 sequences; it was trained for 8192"
    assert (context.level, context.found) == ("note", found)
    *_, context = of_model(ModelSpec("m", Config()), 1 << 34, wanted)
    assert context == Finding("ok", "model m", "a sequence may have 8192 tokens; 32768 KV cells for 16 sequences")


def test_a_models_words_do_not_steer_the_terminal() -> None:
    hostile = Finding("note", "model m", "\x1b[2J\rllama", "say\u202e\nso")
    assert all(line.removesuffix("\n").isprintable() for line in lines(hostile, 9))


def test_slow_weights_that_stay_so_are_told() -> None:
    first, *_ = of_model(ModelSpec("m", Config(model=default_model(), weights="as-is")), 1 << 34, wanted)
    assert "umaserve tune" in first.advice


def test_the_units_limits_are_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits = {"LimitNOFILE": "100", "MemoryMax": "1048576", "CPUQuotaPerSecUSec": "500ms", "ActiveState": "active"}
    monkeypatch.setattr(systemd, "unit", lambda *_: limits)
    found = [one for one in findings.of_box(Config()) if one.about == "unit"]
    assert [one.level for one in found] == ["wrong", "wrong", "note", "ok"]


def test_units_are_read_as_systemctl_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert systemd.unit("umaserve.service", ("LimitNOFILE",)) == {}
    standin = tmp_path / "systemctl"
    standin.write_text("#!/bin/sh\necho LoadState=$STATE\necho LimitNOFILE=524288\n")
    standin.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("STATE", "loaded")
    assert systemd.unit("umaserve.service", ("LimitNOFILE",))["LimitNOFILE"] == "524288"
    monkeypatch.setenv("STATE", "not-found")
    assert systemd.unit("umaserve.service", ("LimitNOFILE",)) == {}


def test_the_clock_is_compared_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not clock.is_behind()
    assert clock.is_synchronized() in (True, False, None)
    installed = os.stat(clock.__file__).st_ctime
    monkeypatch.setattr(time, "time", lambda: installed - 1.0)
    assert clock.is_behind()


def test_gpus_and_huge_pages_are_read_from_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl", "kfd", "null"):
        (tmp_path / name).touch()
    assert devices.gpus(tmp_path) == [str(tmp_path / "kfd"), str(tmp_path / "nvidia0")]
    assert devices.gpus(tmp_path / "none") == []
    modes = tmp_path / "kernel/mm/transparent_hugepage/enabled"
    modes.parent.mkdir(parents=True)
    modes.write_text("always madvise [never]\n")
    assert devices.huge_pages(tmp_path) == "never"
    assert devices.huge_pages(tmp_path / "none") == ""


def test_instructions_are_the_kernels_names(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert instructions(tmp_path) == {"fpu", "avx2"}
    assert instructions(tmp_path / "none") == frozenset()


def test_who_holds_a_port_in_another_process() -> None:
    code = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        held = ports.holder(port)
        assert held is not None
        assert held.pid == process.pid
        assert held.command.startswith(sys.executable)
        assert not ports.is_free("127.0.0.1", port)
        process.communicate("")
    assert ports.holder(port) is None
    assert ports.is_free("127.0.0.1", port)
