"""What several test files share: one daemon with the default model."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A busy machine is no fault of what is tested.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("untimed"), max_examples=10, derandomize=True
)
hypothesis.settings.load_profile("untimed")

# Answers are compared with those of the default model's own file, and nothing goes to the user's folders.
os.environ["UMA_WEIGHTS"] = "as-is"
os.environ["XDG_STATE_HOME"] = "/dev/null"

# Tests run side by side, on cores that each of them needs: threads that wait for one another had better not spin.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# What the shared pieces assert must hold under -O as well.
pytest.register_assert_rewrite(*(file.stem for file in (Path(__file__).parent / "support").glob("*.py")))
from daemon import ANSWER_S, Daemon  # noqa: E402


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A command that a test runs in this process sets up its log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    """A daemon with its defaults and a store, shared; every test leaves it as idle as it was.

    But it guesses nothing: which guesses are verified depends on what has proved faster, llama.cpp rounds otherwise
    where it verifies some, and answers are compared that have near ties.
    """
    # One compute thread: several stumble over one another wherever another program, such as pytest, has a core.
    folder = tmp_path_factory.mktemp("daemon")
    flags = ("--http", "127.0.0.1:0", "--debug-echo", "--no-speculation", "--store", str(folder / "store"))
    daemon = Daemon(folder, *flags, env={"UMA_THREADS": "1"})
    yield daemon
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture
def own_daemon(tmp_path):
    """Makes daemons with flags of the test's own, and one compute thread."""
    made = []

    def make(*flags: str, env: dict[str, str] | None = None, **options) -> Daemon:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Daemon(directory, *flags, env={"UMA_THREADS": "1"} | (env or {}), **options))
        return made[-1]

    yield make
    for daemon in made:
        daemon.stop()
        assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture
def connect():
    """Makes OpenAI's clients of daemons, with a key."""
    import openai

    clients = []

    def connected(daemon: Daemon, key: str = "none") -> openai.OpenAI:
        address = f"http://{daemon.http}/v1"
        clients.append(openai.OpenAI(base_url=address, api_key=key, max_retries=0, timeout=ANSWER_S))
        return clients[-1]

    yield connected
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory):
    """A browser for the tests of one file."""
    from browser import Browser

    profile = tmp_path_factory.mktemp("profile")
    browser = Browser(profile)
    yield browser
    browser.close()
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture
def browser(opened):
    """The browser, which must have nothing to complain about afterwards."""
    yield opened
    assert opened.complaints() == []
