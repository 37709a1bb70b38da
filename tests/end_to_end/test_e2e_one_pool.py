"""One pool of computing threads in each engine's process, whose barriers spin: see docs/internals/threads.md.

libgomp counts the threads of all pools of a process. With more of them than cores, each barrier sleeps in the kernel,
some hundred times a token, and decodes take up to twice as long. So no other thread than the one that computes may
leave a pool behind. The threads of a pool have the name of the thread that made it.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import media_files
import PIL.Image
import pytest
import standin_projectors as projectors
from chat_wire import ask
from daemon import ANSWER_S, Daemon
from engine_processes import engine_of, engines

from umaserve.commands.barriers import of_daemon
from umaserve.settings.model_files import default_model
from umaserve.system.openmp import IDLE_POOL, MAX_IDLE, VARIABLES

THREADS = 2
TOKENS = 200
SWITCHES_A_TOKEN = 5
"""At most, of one thread. The one that has the daemon's calls waits once a token; where barriers sleep, both wait 80
times or more."""

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc, where threads are counted"),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < THREADS, reason="two cores are needed for two computing threads"),
]


def pools(pid: int) -> list[list[Path]]:
    """The threads of the process that have the same name: those that one has made by computing, with that one. The
    idle pool is there while other tests need the cores."""
    named = collections.defaultdict(list)
    for task in Path(f"/proc/{pid}/task").iterdir():
        named[(task / "comm").read_text().strip()].append(task)
    main = Path(f"/proc/{pid}/task/{pid}/comm").read_text().strip()
    return [tasks for name, tasks in named.items() if len(tasks) > 1 and name not in (main, IDLE_POOL)]


def assert_one_pool(pid: int) -> None:
    """No thread but one has made others by computing, and none is left of loading."""
    deadline = time.monotonic() + ANSWER_S
    # A thread that has just begun still has the name of the one that started it.
    while [len(pool) for pool in pools(pid)] != [THREADS] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [len(pool) for pool in pools(pid)] == [THREADS]


def switches(pid: int) -> int:
    """The most voluntary context switches that one of the computing threads has made (proc(5), status)."""
    tasks = [task for pool in pools(pid) for task in pool]
    status = [dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines()) for task in tasks]
    return max(int(one["voluntary_ctxt_switches"]) for one in status)


def names(pid: int) -> set[str]:
    """The names of the process's threads; one that ends meanwhile has none."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add((task / "comm").read_text().strip())
    return found


@contextlib.contextmanager
def running(source: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", source])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("one.gguf", "other.gguf"):
        shutil.copy(default_model(), folder / name)
    return folder


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Daemon]:
    flags = ("--http", "127.0.0.1:0", "--no-speculation", "--parallel", "4", "--n-ctx", "4096")
    flags += ("--models-dir", str(folder), "--model", "one")
    daemon = Daemon(tmp_path_factory.mktemp("pool"), *flags, env={"UMA_THREADS": str(THREADS)})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


def stream(daemon: Daemon, prompt: str = "Once upon a time", tokens: int = TOKENS, **fields: str) -> None:
    end = daemon.ask(prompt, max_tokens=tokens, ignore_eos=True, **fields)[-1]
    assert end["reason"] == "length"


def test_barriers_of_a_stream_spin(tmp_path: Path) -> None:
    # Where another test has a core, a barrier that may spin for as long as it takes does so. Only one that must not
    # spin sleeps.
    daemon = Daemon(tmp_path, "--no-speculation", env={"UMA_THREADS": str(THREADS), "GOMP_SPINCOUNT": "infinity"})
    stream(daemon, tokens=8)
    engine = engine_of(daemon)
    before = switches(engine)
    stream(daemon, "There was a king")
    assert switches(engine) - before < SWITCHES_A_TOKEN * TOKENS
    assert daemon.stop() == 0, daemon.logs


@pytest.mark.skipif((os.cpu_count() or 1) > MAX_IDLE, reason="with so many cores, barriers spin in any case")
def test_barriers_sleep_where_other_programs_have_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    daemon = Daemon(tmp_path, env={"UMA_THREADS": str(THREADS)})
    if "libgomp" not in Path(f"/proc/{engine_of(daemon)}/maps").read_text():
        daemon.stop()
        pytest.skip("this build of llama.cpp does not use GCC's OpenMP (libgomp)")
    with contextlib.ExitStack() as busy:
        for _ in range(os.cpu_count() or 1):
            busy.enter_context(running("while True: pass"))
        stream(daemon, tokens=8)
        while IDLE_POOL not in names(engine_of(daemon)):
            stream(daemon, tokens=8)
    assert daemon.stop() == 0, daemon.logs


@pytest.mark.parametrize(("spins", "level"), [("infinity", "ok"), ("0", "note")])
def test_doctor_sees_whether_the_barriers_of_a_daemon_sleep(tmp_path: Path, spins: str, level: str) -> None:
    daemon = Daemon(tmp_path, env={"UMA_THREADS": str(THREADS), "GOMP_SPINCOUNT": spins})
    stream(daemon, tokens=8)
    (found,) = of_daemon(daemon.path)
    assert (found.level, found.about) == (level, "barriers"), found
    assert daemon.stop() == 0, daemon.logs
    assert not list(of_daemon(daemon.path))


def test_one_pool_after_the_cells_were_divided(daemon: Daemon) -> None:
    # Longer than a part.
    stream(daemon, " ".join(map(str, range(500))), tokens=8)
    stream(daemon, tokens=8)
    assert_one_pool(engine_of(daemon, "one.gguf"))


def test_one_pool_for_each_of_two_models_and_after_a_reload(daemon: Daemon) -> None:
    for _ in range(2):
        stream(daemon, model="other", tokens=8)
        stream(daemon, " ".join(map(str, range(500))), model="other", tokens=8)
        assert len(engines(daemon)) == 2
        for file in ("one.gguf", "other.gguf"):
            assert_one_pool(engine_of(daemon, file))
        httpx.post(f"http://{daemon.http}/models/unload", json={"model": "other"}).raise_for_status()
        daemon.wait_for(lambda metrics: metrics["models"]["other"]["state"] == "unloaded")


def test_one_pool_where_the_model_sees(tmp_path: Path) -> None:
    projector = projectors.both(tmp_path / "mmproj.gguf")
    flags = ("--http", "127.0.0.1:0", "--mmproj", str(projector))
    daemon = Daemon(tmp_path, *flags, env={"UMA_THREADS": str(THREADS)})
    picture = base64.b64encode(media_files.image("PNG", PIL.Image.new("RGB", (64, 64)))).decode()
    content = [{"type": "image", "data": picture}, {"type": "text", "text": "What is it?"}]
    (*_, last), _code = ask(daemon, messages=[{"role": "user", "content": content}])
    assert last["type"] == "done"
    assert_one_pool(engine_of(daemon))
    assert daemon.stop() == 0, daemon.logs
