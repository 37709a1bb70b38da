"""Downloads in their order, and what the daemon makes of what their processes say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import orjson
import pytest
from world import World

from umaserve.core.errors import Fault, RequestError
from umaserve.daemon import download_process, model_downloads
from umaserve.daemon.download_process import END_S, MAX_SILENT_S, REAP_S, DownloadProcess
from umaserve.daemon.model_downloads import MAX_ENDED, MAX_WAITING, ModelDownloads
from umaserve.models.registry import Models
from umaserve.settings.daemon import Config
from umaserve.settings.models import Catalogue, ModelSpec

URL = "https://hub.example/a.gguf"


class StandInProcess:
    """Says what the test has it say."""

    made: ClassVar[list[StandInProcess]] = []

    def __init__(
        self, _loop: object, arguments: Sequence[str], said: Callable[[bytes], None], ended: Callable[[str], None]
    ) -> None:
        self.name = arguments[0]
        self.said, self.ended = said, ended
        self.stopped = False
        self.made.append(self)

    def say(self, **words: Any) -> None:
        self.said(orjson.dumps(words))

    def stop(self) -> None:
        self.stopped = True

    close = stop


class DownloadWorld(World):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        served = ModelSpec("served", Config(model=str(folder / "served.gguf")), aliases=("org/served:Q8_0",))
        models = SimpleNamespace(catalogue=Catalogue(served))
        self.rereads: list[Callable[[], None]] = []
        self.leaving = False
        config = Config(models_dir=str(folder), model_downloads=1 << 30)
        self.downloads = ModelDownloads(
            self.loop, config, cast("Models", models), self.rereads.append, lambda: self.leaving
        )

    def listed(self) -> list[tuple[str, str | None]]:
        return [(one.name, one.problem) for one in self.downloads.listed()]

    def refusal(self, name: str) -> tuple[Fault, str]:
        with pytest.raises(RequestError) as refused:
            self.downloads.start(name)
        return refused.value.fault, refused.value.message


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[StandInProcess]:
    monkeypatch.setattr(StandInProcess, "made", [])
    monkeypatch.setattr(model_downloads, "DownloadProcess", StandInProcess)
    return StandInProcess.made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DownloadWorld]:
    world = DownloadWorld(tmp_path)
    yield world
    world.close()


def test_one_runs_at_a_time_and_few_wait(world: DownloadWorld, processes: list[StandInProcess]) -> None:
    names = [f"org/m{number}" for number in range(MAX_WAITING + 1)]
    for name in names:
        world.downloads.start(name)
    assert [one.name for one in processes] == names[:1]
    assert world.refusal("org/another")[0] is Fault.QUEUE_FULL
    assert world.refusal("hf.co/org/m3")[0] is Fault.BUSY
    assert world.refusal("org/served:Q8_0") == (
        Fault.BAD_REQUEST,
        "model: org/served:Q8_0 is there already, as served: DELETE /models deletes it",
    )
    processes[0].say(error="the disk is full")
    assert len(processes) == 1, "not before the process has ended"
    processes[0].ended("failed")
    assert world.listed()[:2] == [("org/m0", "the disk is full"), ("org/m1", None)]
    assert [one.name for one in processes] == names[:2]
    world.leaving = True
    assert world.refusal("org/another")[0] is Fault.SHUTTING_DOWN


def test_a_download_has_finished_once_the_daemon_has_the_model(
    world: DownloadWorld, processes: list[StandInProcess]
) -> None:
    world.downloads.start("org/a:Q8_0")
    world.downloads.start("org/b")
    processes[0].say(model="a-Q8_0", files={URL: [5, 7]})
    (first, _second) = world.downloads.listed()
    assert (first.model, dict(first.files)) == ("a-Q8_0", {URL: (5, 7)})
    processes[0].say(finished=True)
    processes[0].ended("ended")
    assert world.listed() == [("org/a:Q8_0", ""), ("org/b", None)]
    assert (world.downloads.listed()[0].ended, len(processes)) == (0, 1)
    world.rereads[0]()
    assert (world.downloads.listed()[0].ended, len(processes)) == (1, 2)


def test_those_that_wait_and_the_one_that_runs_are_cancelled(
    world: DownloadWorld, processes: list[StandInProcess]
) -> None:
    for name in ("org/a", "org/b", "org/c"):
        world.downloads.start(name)
    assert world.downloads.cancel("org/b")
    assert not world.downloads.cancel("org/none")
    assert world.downloads.cancel("hf.co/org/a")
    assert processes[0].stopped
    processes[0].say(finished=True)
    assert world.listed() == [("org/b", "it was cancelled"), ("org/a", "it was cancelled"), ("org/c", None)]
    assert len(processes) == 1, "the first one tidies up"
    processes[0].ended("was interrupted")
    assert world.downloads.snapshot() == {
        "model_downloads_unfinished": 1,
        "model_downloads_total": 2,
        "model_download_failures_total": 2,
    }
    assert [one.name for one in processes] == ["org/a", "org/c"]
    assert world.rereads == []


def test_the_latest_failures_are_kept_one_for_each_name(world: DownloadWorld, processes: list[StandInProcess]) -> None:
    for number in [*range(MAX_ENDED + 3), 5]:
        world.downloads.start(f"org/m{number}")
        processes[-1].ended(f"died {number}")
    names = [name for name, _problem in world.listed()]
    assert (len(names), names[-1], len(set(names))) == (MAX_ENDED, "org/m5", MAX_ENDED)
    world.downloads.start("org/m5")
    assert world.listed()[-2:] == [("org/m18", "died 18"), ("org/m5", None)], "what is tried again is in the list once"


def test_a_name_that_another_model_has_ends_the_download(world: DownloadWorld, processes: list[StandInProcess]) -> None:
    world.downloads.start("other/served")
    processes[0].say(model="served", files={})
    assert processes[0].stopped
    ((name, problem),) = world.listed()
    assert (name, problem) == (
        "other/served",
        "the daemon has another model that is named served: delete that first",
    )


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{", b"[]", b"null", b"\xff", b'{"finished": 1}', b'{"error": 5}'),
        *(b'{"model": "../../x", "files": {}}', b'{"model": "", "files": {}}', b'{"model": "a", "files": {"u": [1]}}'),
        *(b'{"model": "a", "files": {"u": [1, "2"]}}', b'{"model": "a", "files": []}'),
    ],
)
def test_other_words_of_a_process_mean_nothing(
    world: DownloadWorld, processes: list[StandInProcess], line: bytes
) -> None:
    world.downloads.start("org/a")
    before = world.downloads.listed()
    processes[0].said(line)
    assert world.downloads.listed() == before
    processes[0].ended("it died")
    assert world.listed() == [("org/a", "it died")]


@pytest.fixture
def standin_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_process, "PROGRAM", "standin_download")


def run(world: World, name: str, seconds: float = REAP_S) -> tuple[list[bytes], str]:
    """What a process says, and how it has ended."""
    said: list[bytes] = []
    ends: list[str] = []
    DownloadProcess(world.loop, (name, "folder", "1"), said.append, ends.append)
    while not ends:
        world.loop.turn()
        world.clock.now += seconds if said else REAP_S
    return said, ends[0]


@pytest.mark.usefixtures("standin_program")
def test_the_end_of_a_process_is_told_in_words() -> None:
    world = World()
    assert run(world, "org/finished") == (
        [b'{"finished": true}'],
        "the download's process failed with status 0: no message",
    )
    assert run(world, "org/broken") == ([], "the download's process failed with status 1: a word of the system's")
    assert run(world, "org/endless")[1].startswith("the download's process was killed"), "a line without an end"
    assert run(world, "org/deaf", MAX_SILENT_S)[1].startswith("the download's process was killed")
    assert run(world, "org/lingering", END_S)[1].startswith("the download's process was killed"), "its end is closed"
    world.close()
