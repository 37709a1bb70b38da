"""The command for a machine without network: what it plans, how it compiles, and all of it with a stand-in."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path, PurePosixPath

import pytest

from bench import bundle, decodes, matrix, offline
from bench.offline import Clock, Failed, Machine, Measurement, planned
from umaserve.settings.daemon import SETTINGS

FIRST = Measurement("first", "one", [], weight=6, least_s=30)
SECOND = Measurement("second", "two", [], weight=3, least_s=30)
LAST = Measurement("last", "three", [], weight=1, least_s=30)
ALL = [FIRST, SECOND, LAST]


def test_all_are_measured_where_there_is_time_each_with_its_share():
    assert planned(ALL, 300) == [(FIRST, 180), (SECOND, 90), (LAST, 30)]


def test_the_last_ones_are_left_out_and_their_time_is_given_to_the_first():
    assert planned(ALL, 299) == [(FIRST, pytest.approx(299 * 2 / 3)), (SECOND, pytest.approx(299 / 3))]
    assert planned(ALL, 40) == [(FIRST, 40)]
    assert planned(ALL, 29) == planned(ALL, -1) == planned([], 600) == []


@pytest.mark.parametrize(("on_gpu", "clients"), [(True, offline.CLIENTS_ON_GPU), (False, offline.CLIENTS_ON_CPU)])
def test_every_measurement_is_one_that_its_program_takes(on_gpu, clients, monkeypatch):
    found = offline.measurements(Path("model.gguf"), clients, on_gpu, Path("work"))
    assert found[0].module == "bench.matrix"
    for one in found:
        settings = {**offline.environment(Path("model.gguf")), **one.settings}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        program = {"bench.matrix": matrix, "bench.decodes": decodes}[one.module]
        options: argparse.Namespace = program._parser().parse_args([*one.arguments, "--limit", "60"])
        if one.module == "bench.decodes":
            assert list(options.streams) == sorted(clients)
            decodes._settings(options)
        else:
            assert options.clients == list(clients)[: len(options.clients)]
            assert set(options.layouts) == {"-np N", "-np N -kvu"}
            assert options.results.name in offline.ROWS
            SETTINGS.load({}, {**os.environ, "UMA_PARALLEL": str(max(options.clients))})


def test_both_widths_of_a_pass_are_tried_on_a_gpu_only():
    widths = [
        {one.settings.get("UMA_N_UBATCH") for one in offline.measurements(Path("m"), [1], on_gpu, Path("work"))}
        for on_gpu in (True, False)
    ]
    assert widths == [{None, "2048"}, {None}]


def test_what_the_user_has_set_is_not_changed(monkeypatch):
    monkeypatch.setenv("UMA_N_UBATCH", "256")
    monkeypatch.delenv("UMA_N_GPU_LAYERS", raising=False)
    variables = offline.environment(Path("model.gguf"), "/bin/llama-server")
    assert variables["UMA_N_UBATCH"] == "256"
    assert variables["UMA_N_GPU_LAYERS"] == "999"
    assert variables["LLAMA_SERVER"] == "/bin/llama-server"


def test_kernels_are_compiled_for_this_machines_gpu_only_and_only_where_there_is_nvcc():
    assert not [flag for flag in offline.build_flags(None) if "CUDA" in flag]
    assert {"-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"} < set(offline.build_flags("/cuda/bin/nvcc"))


def test_it_runs_before_anything_is_installed():
    code = f"import sys; sys.path.insert(0, {str(bundle.ROOT)!r}); import bench.offline"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_a_program_is_stopped_with_all_that_it_has_started_when_its_time_is_over(tmp_path):
    child = "import time; print('there', flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with (tmp_path / "out").open("wb") as output:
        # Its output tells when the child is there, so the time is over only then.
        def watch():
            while b"there" not in (tmp_path / "out").read_bytes():
                yield
            raise TimeoutError

        with pytest.raises(TimeoutError):
            offline.run([sys.executable, "-c", parent], 600, {}, stdout=output, watch=watch())
    # Killed at once, but by the kernel, in its own time.
    until = time.monotonic() + 60
    while any(child in _read(process) for process in Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() < until
        time.sleep(0.01)


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def test_the_status_of_a_program_is_returned_and_none_where_it_was_stopped(tmp_path):
    with (tmp_path / "out").open("wb") as output:
        assert offline.run([sys.executable, "-c", "raise SystemExit(3)"], 60, {}, stdout=output) == 3
        assert offline.run([sys.executable, "-c", "input()"], 0, {}, stdout=output) is None


def test_a_step_that_fails_shows_the_end_of_its_log_and_what_to_do(tmp_path):
    machine = Machine(tmp_path, tmp_path / "work", Clock(60))
    command = [sys.executable, "-c", "print('why'); raise SystemExit(2)"]
    with pytest.raises(Failed, match=r"(?s)why\nstatus 2 of: .*step\.log; install it"):
        machine._run(command, "step", "install it")


def test_a_step_without_time_says_that_it_goes_on_there(tmp_path):
    with pytest.raises(Failed, match="the same command goes on from there"):
        Machine(tmp_path, tmp_path / "work", Clock(0))._run([sys.executable, "-c", "input()"], "step")


def test_a_folder_without_wheels_is_an_error_that_says_how_to_make_one(tmp_path):
    with pytest.raises(Failed, match=r"no wheels there: make it with python -m bench\.bundle"):
        Machine(tmp_path, tmp_path / "work", Clock(60)).venv()


def test_the_bindings_use_the_libraries_that_were_compiled_last(tmp_path):
    package = tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "llama_cpp"
    package.mkdir(parents=True)
    for build in ("old", "new"):
        (tmp_path / build).mkdir()
        (tmp_path / build / "libllama.so.0").write_text(build)
        (tmp_path / build / "libllama.so").symlink_to("libllama.so.0")
        Machine(tmp_path, tmp_path, Clock(60)).bind(tmp_path / "venv", tmp_path / build)
    assert (package / "lib" / "libllama.so").read_text() == "new"


def test_a_bundle_has_what_umaserve_requires():
    required = {line.split(">")[0] for line in bundle.requirements()}
    assert {"llama-cpp-python", "numpy", "orjson", "h11", "wsproto", "jinja2"} <= required


def test_the_source_of_llama_cpp_is_packed_without_what_is_not_compiled(tmp_path):
    long = f"{'kernels-' * 15}/instance.cu"
    files = {
        f"llama_cpp_python-1/vendor/llama.cpp/{long}": b"__global__ void f();",
        "llama_cpp_python-1/vendor/llama.cpp/CMakeLists.txt": b"project(llama.cpp)",
        "llama_cpp_python-1/vendor/llama.cpp/tools/server/server.cpp": b"int main() {}",
        "llama_cpp_python-1/vendor/llama.cpp/models/large.gguf": b"GGUF",
        "llama_cpp_python-1/vendor/llama.cpp/docs/build.md": b"text",
        "llama_cpp_python-1/vendor/llama.cpp/.git": b"gitdir: ../../.git/modules/vendor/llama.cpp",
        "llama_cpp_python-1/.git/objects/pack/pack": b"history",
        "llama_cpp_python-1/llama_cpp/llama_cpp.py": b"import ctypes",
    }
    with tarfile.open(tmp_path / "sdist.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    bundle.repack(tmp_path / "sdist.tar.gz", tmp_path / "llama.cpp.tar.xz")
    with tarfile.open(tmp_path / "llama.cpp.tar.xz", "r:xz") as archive:
        packed = {member.name: archive.extractfile(member).read() for member in archive}
    assert packed == {
        f"llama.cpp/{long}": b"__global__ void f();",
        "llama.cpp/CMakeLists.txt": b"project(llama.cpp)",
        "llama.cpp/tools/server/server.cpp": b"int main() {}",
    }
    assert not bundle.is_needed(PurePosixPath("llama_cpp_python-1/vendor/llama.cpp"))


def test_wheels_for_another_python_are_named_to_pip():
    assert bundle._target(None) == ["--only-binary", ":all:"]
    assert bundle._target("3.12")[2:4] == ["--python-version", "3.12"]


STAND_IN = """\
#!/usr/bin/env -S "{python}"
import os, sys
flags = dict(zip(sys.argv, sys.argv[1:]))
os.environ["UMA_HTTP"] = flags["--host"] + ":" + flags["--port"]
os.environ["UMA_SOCK"] = os.path.join({folder!r}, flags["--port"])
os.environ["UMA_PARALLEL"] = "4"
os.execv(sys.executable, [sys.executable, "-m", "bench.standin"])
"""


def test_one_command_writes_a_model_measures_it_beside_a_server_and_reports(tmp_path, monkeypatch, capfd):
    server = tmp_path / "llama-server"
    server.write_text(STAND_IN.format(python=sys.executable, folder=str(tmp_path)))
    server.chmod(0o755)
    monkeypatch.setenv("LLAMA_SERVER", str(server))
    monkeypatch.setenv("UMA_THREADS", "1")
    monkeypatch.setattr(offline, "_gpu", lambda: "")
    small = ["--words", "24", "--tokens", "4", "--no-talks", "--repeats", "1", "--layouts", "-np N", "--clients", "2"]

    def small_ones(model, clients, on_gpu, work):
        assert (list(clients), on_gpu) == ([2], False)
        loads = [*small, "--models", str(model), "--picture", str(work / "x.png")]
        streams = ["--streams", "2", "--cells", "20", "--prompt", "8", "--repeats", "1"]
        return [
            Measurement("the matrix", "bench.matrix", loads, weight=1),
            Measurement("single decodes", "bench.decodes", streams, weight=1),
            Measurement("too much", "bench.matrix", [], weight=1, least_s=100_000),
        ]

    monkeypatch.setattr(offline, "measurements", small_ones)
    work = tmp_path / "work"
    flags = ["--venv", sys.prefix, "--work", str(work), "--parameters", "10M", "--clients", "2", "--limit", "3000"]
    assert offline.main(flags) == 0
    report, said = (work / "report.md").read_text(), capfd.readouterr()
    assert "# The matrix\n\n## The matrix: random-10M-Q8_0-64.gguf" in report
    assert "# Single decodes\n\n## Decodes: random-10M-Q8_0-64.gguf" in report
    assert "-np N" in report
    assert report in said.out
    assert "left out, since too little time was left: too much" in said.err
    written = (work / "random-10M-Q8_0-64.gguf").stat().st_mtime_ns
    rows = [work / name for name in offline.ROWS]
    monkeypatch.setattr(offline, "measurements", lambda *_: [])
    for file in rows:
        file.write_bytes(b"")
    assert offline.main([*flags, "--go-on"]) == 0
    assert all(file.exists() for file in rows)
    assert offline.main(flags) == 0
    assert not any(file.exists() for file in rows)
    assert (work / "random-10M-Q8_0-64.gguf").stat().st_mtime_ns == written


def test_a_measurement_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch, capfd):
    ends = Measurement("what ends well", "this", [], weight=1)
    fails = Measurement("what fails", "bench.no_such_program", [], weight=1)
    monkeypatch.setattr(offline, "measurements", lambda *_: [fails, ends])
    monkeypatch.setattr(Machine, "model", lambda *_: tmp_path / "model.gguf")
    monkeypatch.setenv("LLAMA_SERVER", sys.executable)
    work = tmp_path / "work"
    work.mkdir()
    assert offline.main(["--venv", sys.prefix, "--work", str(work), "--limit", "3000"]) == 1
    said = capfd.readouterr().err
    assert "what fails: ended with status 1" in said
    assert said.index("what ends well") > said.index("what fails")


def test_time_that_has_passed_is_no_longer_left(monkeypatch):
    now = iter([10.0, 70.0, 70.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    clock = Clock(600)
    assert clock.left_s == 540
    assert clock.passed_s == 60
