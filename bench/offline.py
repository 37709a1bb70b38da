"""``python3 -m bench.offline``: umaserve beside llama-server, by one command on a machine without network.

It runs in the folder that ``bench.bundle`` has made, and needs Python, a C++ compiler, and for an NVIDIA GPU its
``nvcc``. llama.cpp is compiled once, and umaserve and llama-server use the same libraries. What a run has finished, the
next one uses again: one that ran out of time while it compiled goes on there.

Nothing is imported here that Python lacks, since this makes the environment in which the rest runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 600.0
STOP_S = 15.0
"""Kept back from a measurement's time: to stop its servers, and to stop it if it does not stop by itself."""

CLIENTS_ON_GPU = (16, 64, 1, 128, 4, 32)
CLIENTS_ON_CPU = (4, 1, 16, 8)
"""The most telling first."""
ON_GPU, ON_CPU = "1B", "100M"
"""How many parameters."""

_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    *(f"-DLLAMA_{what}=OFF" for what in ("BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_APP", "BUILD_UI", "USE_PREBUILT_UI")),
    "-DLLAMA_OPENSSL=OFF",
)
_SETTINGS = {
    "UMA_N_GPU_LAYERS": "999",
    # llama-server's own defaults.
    "UMA_N_BATCH": "2048",
    "UMA_N_UBATCH": "512",
    # A model without sense may repeat itself without end, and all that were predicted.
    "UMA_SPECULATION": "false",
}
_WIDE = {"UMA_N_BATCH": "2048", "UMA_N_UBATCH": "2048"}
ROWS = ("rows.jsonl", "rows-wide.jsonl")
_LOG_LINES = 30
_POLL_S = 0.2
_SHOWN_EVERY_S = 10.0


class Failed(Exception):
    """A step failed; says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A program to run with ``--limit``. It is left out where it would get less than ``least_s``."""

    title: str
    module: str
    arguments: Sequence[str]
    weight: float
    """Its share of the time, relative to those of the others."""
    least_s: float = 30.0
    settings: Mapping[str, str] = field(default_factory=dict)


def planned(wanted: Sequence[Measurement], left_s: float) -> list[tuple[Measurement, float]]:
    """The measurements for which there is time, the first ones before the last ones, and the seconds of each."""
    chosen = list(wanted)
    while chosen:
        total = sum(one.weight for one in chosen)
        shares = [left_s * one.weight / total for one in chosen]
        if all(share >= one.least_s for one, share in zip(chosen, shares, strict=True)):
            return list(zip(chosen, shares, strict=True))
        chosen.pop()
    return []


def measurements(model: Path, clients: Sequence[int], on_gpu: bool, work: Path) -> list[Measurement]:
    """The most useful first. The rows of each matrix are also kept in a file of ``ROWS``."""
    loads = ["--models", str(model), "--words", "24", "300", "--tokens", "128", "--no-talks", "--repeats", "1"]
    loads += ["--layouts", "-np N", "-np N -kvu", "--picture", str(work / "matrix.png")]
    rows, rows_wide = (["--results", str(work / name)] for name in ROWS)
    numbers = [str(number) for number in clients]
    streams = [str(number) for number in sorted(clients)]
    size = ("--cells", "450", "--prompt", "1536") if on_gpu else ("--cells", "100", "--prompt", "128")
    found = [
        Measurement("the matrix", "bench.matrix", [*loads, *rows, "--clients", *numbers], weight=8),
        Measurement("single decodes", "bench.decodes", ["--streams", *streams, *size], weight=2),
    ]
    if on_gpu:
        wide = "with passes of up to 2048 rows"
        some = ["--clients", *numbers[:2]]
        found += [
            Measurement(f"the matrix {wide}", "bench.matrix", [*loads, *rows_wide, *some], weight=4, settings=_WIDE),
            Measurement(f"decodes {wide}", "bench.decodes", ["--streams", *streams, *size], weight=2, settings=_WIDE),
        ]
    return found


class Clock:
    """What is left of the whole time, and what happens, with the time since the start."""

    def __init__(self, limit_s: float) -> None:
        self._started = time.monotonic()
        self._limit_s = limit_s

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def left_s(self) -> float:
        return self._limit_s - self.passed_s

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(self.passed_s), 60)
        print(f"[{minutes}:{seconds:02}] {text}", file=sys.stderr, flush=True)


class Machine:
    """The steps, each of which leaves its result in ``work`` for the next run."""

    def __init__(self, bundle: Path, work: Path, clock: Clock) -> None:
        self._bundle = bundle
        self._work = work
        self._clock = clock

    def venv(self) -> Path:
        """Make the environment with what the bundle has; returns its Python."""
        folder = self._work / "venv"
        python, done = folder / "bin" / "python", folder / "installed"
        wheels = sorted(map(str, (self._bundle / "wheels").glob("*.whl")))
        pip = [wheel for wheel in wheels if Path(wheel).name.startswith("pip-")]
        if done.exists():
            return python
        if not pip:
            raise Failed(f"{self._bundle}: no wheels there: make it with python -m bench.bundle, or name it: --bundle")
        self._clock.say(f"installing {len(wheels)} packages")
        # Without pip, since some systems have none to put into it.
        self._run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], "venv")
        # pip runs from its own wheel.
        install = ["install", "--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
        advice = "if the wheels are for another Python, make the bundle with --python VERSION"
        self._run([str(python), f"{pip[0]}/pip", *install, *wheels], "venv", advice)
        done.touch()
        return python

    def llama_cpp(self, tools: Path, server: bool, nvcc: str | None) -> Path:
        """Compile llama.cpp, with its ``server`` or without; returns the folder of libraries and programs. ``tools``:
        the folder in which cmake and ninja are looked for first."""
        source, build = self._work / "llama.cpp", self._work / "build"
        path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
        if not (source / "unpacked").exists():
            self._clock.say("unpacking llama.cpp")
            self._work.mkdir(parents=True, exist_ok=True)
            archive = self._bundle / "llama.cpp.tar.xz"
            self._run([sys.executable, "-m", "tarfile", "-e", str(archive), str(self._work)], "unpack")
            (source / "unpacked").touch()
        if not (build / "build.ninja").exists():
            self._clock.say(f"configuring llama.cpp {'with CUDA, for this GPU only' if nvcc else 'for the CPU'}")
            command = ["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", *build_flags(nvcc)]
            advice = "CMake from 3.24 on, ninja and a C++ compiler are needed"
            self._run(command, "configure", advice, path)
        targets = ["llama", "mtmd", *(["llama-server"] if server else [])]
        self._clock.say(f"compiling {', '.join(targets)}")
        command = ["cmake", "--build", str(build), "--parallel", "--target", *targets]
        self._run(command, "compile", "", path)
        return build / "bin"

    def bind(self, venv: Path, libraries: Path) -> None:
        """Let the environment's llama-cpp-python use these libraries."""
        (package,) = venv.glob("lib/python*/site-packages/llama_cpp")
        (package / "lib").mkdir(exist_ok=True)
        for library in libraries.glob("lib*.so*"):
            link = package / "lib" / library.name
            link.unlink(missing_ok=True)
            link.symlink_to(library.resolve())

    def model(self, python: Path, parameters: str, weights: str, head_size: str) -> Path:
        """Write a model of random weights."""
        path = self._work / f"random-{parameters}-{weights}-{head_size}.gguf"
        if not path.exists():
            self._clock.say(f"writing a model of {parameters} random weights as {weights}")
            self._work.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            command = [str(python), "-m", "bench.random_model", str(part), "--parameters", parameters]
            command += ["--weights", weights, "--head-size", head_size]
            tokenizer = self._bundle / "tokenizer.gguf"
            command += ["--tokenizer", str(tokenizer)] if tokenizer.exists() else []
            self._run(command, "model", "", environment(model=path))
            part.rename(path)
        return path

    def measure(self, python: Path, one: Measurement, seconds: float, variables: Mapping[str, str]) -> str | None:
        """Run it; adds what it finds to the report, and returns why there may be something missing, if so."""
        limit = max(1.0, seconds - STOP_S)
        self._clock.say(f"measuring {one.title}, for at most {limit:.0f} s")
        found = self._work / "found.md"
        command = [str(python), "-m", one.module, *one.arguments, "--limit", f"{limit:.0f}"]
        with found.open("wb") as output:
            status = run(command, seconds, {**variables, **one.settings}, stdout=output)
        settings = ", ".join(f"{name}={value}" for name, value in one.settings.items())
        text = f"# {one.title.capitalize()}{f': {settings}' if settings else ''}\n\n{found.read_text()}\n"
        print(text, end="", flush=True)
        with (self._work / "report.md").open("a") as report:
            report.write(text)
        if status is None:
            return f"{one.title}: stopped, since it did not end in time"
        return f"{one.title}: ended with status {status}" if status else None

    def _run(
        self, command: Sequence[str], name: str, advice: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        """Run one step, with its output in a log. Raises ``Failed`` where it fails or the time is over."""
        self._work.mkdir(parents=True, exist_ok=True)
        log = self._work / f"{name}.log"
        with log.open("wb") as output:
            status = run(command, self._clock.left_s, variables or {}, stdout=output, watch=self._watch(log))
        if status is None:
            raise Failed(f"no time is left, while this ran: {' '.join(command)}: the same command goes on from there")
        if status:
            lines = log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            told = "\n".join([*lines, f"status {status} of: {' '.join(command)}"])
            raise Failed(f"{told}\nall of it is in {log}{f'; {advice}' if advice else ''}")

    def _watch(self, log: Path) -> Iterator[None]:
        """Show from time to time how far ninja is."""
        shown_at, shown = time.monotonic(), b""
        while True:
            if time.monotonic() - shown_at >= _SHOWN_EVERY_S:
                shown_at = time.monotonic()
                steps = re.findall(rb"^\[\d+/\d+\]", log.read_bytes(), re.MULTILINE)
                if steps and steps[-1] != shown:
                    shown = steps[-1]
                    self._clock.say(f"{shown.decode()} files")
            yield


def run(
    command: Sequence[str],
    seconds: float,
    variables: Mapping[str, str],
    *,
    stdout: object,
    watch: Iterator[None] | None = None,
) -> int | None:
    """Run it with these variables and all that it starts; returns its status, or ``None`` where it was stopped, since
    the time was over. With a ``watch``, which is advanced meanwhile, its errors are output too."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=stdout,  # type: ignore[call-overload]
        stderr=None if watch is None else subprocess.STDOUT,
        start_new_session=True,
    )
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            if watch is not None:
                next(watch)
        return None
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop it and all that it has started, if it still runs."""
    if process.poll() is not None:
        return
    for kind in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S / 3)
            return


def build_flags(nvcc: str | None) -> list[str]:
    """CMake's flags for llama.cpp. For a GPU, its kernels are compiled for this machine's architecture only."""
    if nvcc is None:
        return list(_FLAGS)
    return [*_FLAGS, "-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native", f"-DCMAKE_CUDA_COMPILER={nvcc}"]


def environment(model: Path, server: str = "") -> dict[str, str]:
    """The variables of all measurements; what the user has set is not changed."""
    settings = {name: os.environ.get(name, value) for name, value in _SETTINGS.items()}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**settings, "PYTHONPATH": path, "UMA_MODEL": str(model), "LLAMA_SERVER": server}


def find_nvcc() -> str | None:
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def _gpu() -> str:
    """The GPUs' names, memory and driver, if there are any."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run all steps; returns the exit status."""
    options = _parser().parse_args(argv)
    clock = Clock(options.limit)
    try:
        return _measure(options, clock)
    except Failed as error:
        clock.say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python3 -m bench.offline",
        description="Compile llama.cpp, write a model of random weights, and measure umaserve beside llama-server.",
        epilog="With LLAMA_SERVER and --venv nothing is compiled. Settings come from the UMA_* variables.",
        allow_abbrev=False,
    )
    parser.add_argument("--bundle", type=Path, default=ROOT, metavar="DIR", help="from bench.bundle (default: here)")
    parser.add_argument("--work", type=Path, default=Path("build/offline"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="in all (default: %(default)s)")
    parser.add_argument("--venv", type=Path, metavar="DIR", help="an environment that has umaserve's requirements")
    sizes = f"10M to 8B (default: {ON_GPU}, without a GPU {ON_CPU})"
    parser.add_argument("--parameters", metavar="N", help=sizes)
    parser.add_argument("--weights", choices=("Q8_0", "Q4_0", "F16"), default="Q8_0", help="default: %(default)s")
    parser.add_argument("--head-size", choices=("64", "128"), default="64", help="default: %(default)s")
    sizes = f"the first ones first (default: {_spaced(CLIENTS_ON_GPU)}, without a GPU {_spaced(CLIENTS_ON_CPU)})"
    parser.add_argument("--clients", type=int, nargs="+", metavar="N", help=sizes)
    parser.add_argument("--go-on", action="store_true", help="measure only those loads that the last run left out")
    return parser


def _spaced(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _measure(options: argparse.Namespace, clock: Clock) -> int:
    work = options.work.absolute()
    machine = Machine(options.bundle.absolute(), work, clock)
    nvcc, gpu = find_nvcc(), _gpu()
    on_gpu = bool(gpu) and (nvcc is not None or options.venv is not None)
    clock.say(f"GPU: {gpu}; {f'compiler: {nvcc}' if nvcc else 'no nvcc'}" if gpu else "no GPU")
    server = os.environ.get("LLAMA_SERVER", "")
    python = options.venv.absolute() / "bin" / "python" if options.venv else machine.venv()
    if not (server and options.venv):
        built = machine.llama_cpp(python.parent, not server, nvcc)
        server = server or str(built / "llama-server")
        if not options.venv:
            machine.bind(python.parents[1], built)
    parameters = options.parameters or (ON_GPU if on_gpu else ON_CPU)
    model = machine.model(python, parameters, options.weights, options.head_size)
    clients = options.clients or (CLIENTS_ON_GPU if on_gpu else CLIENTS_ON_CPU)
    waiting = measurements(model, clients, on_gpu, work)
    if not options.go_on:
        for name in ROWS:
            (work / name).unlink(missing_ok=True)
    (work / "report.md").write_text(f"{gpu}\n\n" if gpu else "")
    problems = []
    # Planned anew each time: what one does not need of its time is the others'.
    while plan := planned(waiting, clock.left_s):
        one, seconds = plan[0]
        waiting = waiting[1:]
        problem = machine.measure(python, one, seconds, environment(model, server))
        problems += [problem] if problem else []
    for problem in problems:
        clock.say(problem)
    if waiting:
        clock.say(f"left out, since too little time was left: {'; '.join(one.title for one in waiting)}")
    clock.say(f"done; all results are in {work / 'report.md'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
