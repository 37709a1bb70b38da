"""``umaserve tune`` without its measurements: which settings are tried, which are kept, and what is shown."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from umaserve.commands import tune_measurements, tune_table
from umaserve.commands.tune_search import Change, Found, NoTimeLeft, Row, is_better, search, together
from umaserve.engine.files.weights import Weights
from umaserve.engine.speeds import Speeds
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.system.program import ProgramError

START = Speeds(one=100.0, many=200.0, prompt=400.0, memory_bytes=600 << 20, prompt_tokens=512, others=0.0, switches=2.0)
TWO_CORES = [
    "present settings",
    "threads = 1",
    'flash_attn = "off"',
    'kv_type = "q8_0"',
    'kv_type = "f16", kv_type_k = "q8_0"',
    'kv_type = "f32"',
    'kv_type = "bf16"',
    "n_ubatch = 256",
    "n_ubatch = 128",
]


def times(one: float, many: float = 1.0, prompt: float = 1.0) -> Speeds:
    """So many times the speeds at the start."""
    return START._replace(one=START.one * one, many=START.many * many, prompt=START.prompt * prompt)


class Box:
    """Measures what a test says of a change, named as in the table: its speeds, or those of the first and of later
    measurements, or an error. Anything else has the speeds at the start."""

    def __init__(self, speeds: Mapping[str, Speeds | list[Speeds | Exception] | Exception]) -> None:
        self.measured: list[str] = []
        self._speeds = speeds

    def __call__(self, change: Change, prompt_tokens: int) -> Speeds:
        name = tune_table.named(change)
        assert prompt_tokens == (START.prompt_tokens if self.measured else 0)
        self.measured.append(name)
        match self._speeds.get(name, START):
            case list(several):
                found = several[min(len(several), self.measured.count(name)) - 1]
            case found:
                pass
        if isinstance(found, Exception):
            raise found
        return found

    def search(self, config: Config | None = None, cores: int = 2, weights: str = "") -> Found:
        found = Found()
        search(config or Config(), cores, weights, self, found)
        return found


def best(found: Found) -> str:
    return tune_table.named(found.rows[found.best].change)


# -- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speeds", "better"),
    [
        (times(1.05, 1.05, 1.05), True),
        (times(1.04, 1.04, 1.04), False),
        (times(1.0, 1.0, 1.16), True),
        (times(1.0, 1.0, 1.15), False),
        (times(0.75, 1.0, 1.6), True),
        # However much is gained, no speed may be given up for it.
        (times(0.74, 1.0, 3.0), False),
        (times(3.0, 3.0, 0.7), False),
        (START, False),
        # Memory does not count.
        (START._replace(memory_bytes=1), False),
    ],
)
def test_a_change_must_gain_and_lose_little(speeds: Speeds, better: bool) -> None:
    assert is_better(speeds, START, START) is better


def test_losses_count_from_the_start() -> None:
    best = times(1.5, 1.0, 0.8)
    assert is_better(times(2.0, 1.0, 0.76), best, START)
    assert not is_better(times(2.0, 1.0, 0.74), best, START)


def test_the_three_speeds_count_alike() -> None:
    assert together(START, START) == 1.0
    assert together(times(2.0, 2.0, 2.0), START) == pytest.approx(2.0)
    assert together(times(8.0), START) == together(times(1.0, 1.0, 8.0), START) == pytest.approx(2.0)


# -- the search -------------------------------------------------------------------------------------------------------


def test_each_setting_is_tried_once_and_the_present_ones_stay_where_nothing_is_faster() -> None:
    box = Box({})
    found = box.search()
    assert box.measured == TWO_CORES
    assert [tune_table.named(row.change) for row in found.rows] == TWO_CORES
    assert (best(found), found.not_measured) == ("present settings", [])


@pytest.mark.parametrize("other", ["as-is", "converted"])
def test_other_weights_are_tried_first(other: str) -> None:
    box = Box({f'weights = "{other}"': times(1.2)})
    found = box.search(weights=other)
    assert box.measured[1] == best(found) == f'weights = "{other}"'


def test_what_is_faster_is_kept_and_what_follows_is_tried_with_it() -> None:
    box = Box({'flash_attn = "off"': times(1.2), 'flash_attn = "off", n_ubatch = 256': times(1.2, 1.2, 1.2)})
    found = box.search()
    assert box.measured == [
        *("present settings", "threads = 1", 'flash_attn = "off"'),
        # Once more, since one of them was faster.
        *("present settings", 'flash_attn = "off"'),
        # No quantized V: it needs flash attention.
        'flash_attn = "off", kv_type = "f16", kv_type_k = "q8_0"',
        *('flash_attn = "off", kv_type = "f32"', 'flash_attn = "off", kv_type = "bf16"'),
        *('flash_attn = "off", n_ubatch = 256', 'flash_attn = "off"', 'flash_attn = "off", n_ubatch = 256'),
        'flash_attn = "off", n_ubatch = 128',
    ]
    assert best(found) == 'flash_attn = "off", n_ubatch = 256'


def test_what_was_faster_by_chance_is_not_kept() -> None:
    slow = times(0.5, 0.5, 0.5)
    box = Box({"present settings": [slow, START]})
    found = box.search()
    assert found.rows[0].speeds == START, "the faster of two measurements counts"
    assert best(found) == "present settings"
    assert box.measured == [*TWO_CORES[:2], "present settings", "threads = 1", *TWO_CORES[2:]]


def test_settings_that_fail_are_a_row_that_says_why() -> None:
    aborted = ProgramError("ended by Aborted: GGML_ASSERT(n > 0) failed")
    found = Box({"threads = 1": aborted, 'kv_type = "f32"': [times(2.0), aborted]}).search()
    assert found.rows[1] == Row({"threads": 1, "threads_batch": 0}, None, str(aborted))
    assert (found.rows[5].speeds, found.rows[5].note) == (times(2.0), f"measured again: {aborted}")
    assert [tune_table.named(row.change) for row in found.rows] == TWO_CORES
    assert best(found) == "present settings"


def test_what_there_is_no_time_for_is_named() -> None:
    late = NoTimeLeft()
    found = Box({'kv_type = "q8_0"': [times(2.0), late]} | dict.fromkeys(TWO_CORES[4:], late)).search()
    assert (found.rows[3].speeds, found.rows[3].note) == (times(2.0), "no time left to measure it again")
    assert list(map(tune_table.named, found.not_measured)) == TWO_CORES[4:]
    assert best(found) == "present settings"


@pytest.mark.parametrize("error", [NoTimeLeft(), ProgramError("model x.gguf: no such file")])
def test_nothing_is_tried_where_the_present_settings_fail(error: Exception) -> None:
    box = Box({"present settings": error})
    with pytest.raises(type(error)):
        box.search()
    assert box.measured == ["present settings"]


@pytest.mark.parametrize(
    ("cores", "threads", "tried"),
    [(1, 0, []), (2, 0, [1]), (2, 1, [2]), (8, 0, [7, 4, 2, 1]), (8, 4, [8, 7, 2, 1]), (64, 0, [63, 32, 16, 1])],
)
def test_fewer_threads_are_tried(cores: int, threads: int, tried: list[int]) -> None:
    found = Box({}).search(Config(threads=threads), cores)
    assert [row.change["threads"] for row in found.rows if "threads" in row.change] == tried


def test_types_of_k_and_v_are_tried_together_and_apart() -> None:
    apart = 'kv_type = "f16", kv_type_k = "q8_0"'
    found = Box({apart: times(1.2, 1.2, 1.2)}).search()
    assert best(found) == apart
    assert tune_table.notes(found).endswith("Quantized KV cells (kv_type) cost a little of the answers' quality.")
    # What follows takes its place.
    assert tune_table.named(found.rows[5].change) == 'kv_type = "f32"'
    present = Config(kv_type_k="q8_0")
    tried = [row.change for row in Box({}).search(present).rows if "kv_type" in row.change]
    assert {"kv_type": "f16", "kv_type_k": "", "kv_type_v": ""} in tried
    assert present.kv_types not in [dataclasses.replace(present, **change).kv_types for change in tried]


def test_one_token_and_prompts_may_have_different_numbers_of_threads() -> None:
    both = "threads = 4, threads_batch = 8"
    found = Box({"threads = 4": times(1.3, 0.6, 0.6), both: times(1.3)}).search(cores=8)
    assert best(found) == both


def test_only_passes_that_are_shorter_than_the_prompts_are_measured() -> None:
    found = Found()
    search(Config(), 1, "", lambda _change, _tokens: START._replace(prompt_tokens=200), found)
    assert [row.change["n_ubatch"] for row in found.rows if "n_ubatch" in row.change] == [128]


# -- the measurements -------------------------------------------------------------------------------------------------


class Processes:
    """In place of the processes that measure: notes their settings, and takes so many seconds for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: list[Mapping[str, object]] = []
        self.took_s = 10.0
        self.error: Exception | None = None
        self.now = 0.0
        monkeypatch.setattr(tune_measurements, "measured", self._measured)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def _measured(
        self, settings: Mapping[str, object], _tokens: int, *, wanted: Callable[[], bool], max_s: float
    ) -> Speeds:
        assert wanted()
        self.settings.append(settings)
        self.now += min(self.took_s, max_s)
        if self.error is not None:
            raise self.error
        return START


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)


@pytest.mark.parametrize(
    ("setting", "present", "other", "loaded"),
    [
        # A daemon loads the copy, or not: the other file is the alternative.
        ("fast", "copy.gguf", "as-is", "m.gguf"),
        ("converted", "copy.gguf", "as-is", "m.gguf"),
        ("fast", "m.gguf", "converted", "copy.gguf"),
        ("fast", "m.gguf", "mapped", "m.gguf"),
        # The operator wants no copy.
        ("as-is", "m.gguf", "", None),
    ],
)
def test_weights_are_chosen_once_and_then_loaded_as_they_are(
    setting: str, present: str, other: str, loaded: str | None, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(path: str, config: Config, wanted: Callable[[float], bool]) -> Weights:
        assert wanted(0.0)
        if config.weights == "mapped":
            return Weights(path, repacked=False)
        found = {"fast": present, "converted": "copy.gguf", "as-is": path}[config.weights]
        was = "" if found == path else "Q4_1"
        return Weights(found, was, other=other if config.weights == "fast" and found == path else "")

    monkeypatch.setattr(tune_measurements, "choose", chosen)
    flags = {"model": "m.gguf", "config": "c.toml"}
    measure = tune_measurements.Measurements(Config(model="m.gguf", weights=setting), flags, 120)
    assert measure.other_weights == other
    assert measure({"threads": 1}, 512) == START
    if other:
        measure({"weights": other, "threads": 1}, 512)
    # Otherwise each process would choose anew, for its number of threads.
    common = {"config": "c.toml", "threads": 1}
    expected = [{**common, "model": present, "weights": "as-is"}]
    if other:
        expected.append({**common, "model": loaded, "weights": "mapped" if other == "mapped" else "as-is"})
    assert processes.settings == expected


@pytest.mark.parametrize("found", ["Q4_K", "no file"])
def test_weights_that_are_not_converted_have_no_other(
    found: str, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_measurements, "choose", lambda path, _config, _wanted: Weights(path))
    assert tune_measurements.Measurements(Config(model=found), {}, 120).other_weights == ""


def test_what_the_weights_were_chosen_by_is_shown(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Weights("m.gguf", repacked=False, why="1 token: 9.0 ms, mapped 8.0 ms")
    monkeypatch.setattr(tune_measurements, "choose", lambda _path, _config, _wanted: chosen)
    measure = tune_measurements.Measurements(Config(model="m.gguf"), {}, 120)
    assert measure.other_weights == "as-is"
    assert measure.note == "Weights that the daemon chooses here: mapped (1 token: 9.0 ms, mapped 8.0 ms)."
    measure({}, 0)
    assert processes.settings == [{"model": "m.gguf", "weights": "mapped"}]


def test_a_conversion_gets_half_of_the_time(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def endless(path: str, _config: Config, wanted: Callable[[float], bool]) -> Weights:
        while wanted(0.5):
            processes.now += 1.0
        return Weights(path)

    monkeypatch.setattr(tune_measurements, "choose", endless)
    measure = tune_measurements.Measurements(Config(model="m.gguf"), {}, 120)
    assert processes.now == 61.0
    assert capsys.readouterr().err.startswith(
        "Converting or comparing the weights takes too long, so they are measured as they are"
    )
    measure({}, 0)
    assert processes.settings == [{"model": "m.gguf", "weights": "as-is"}]


def test_nothing_begins_that_would_not_end_in_time(processes: Processes) -> None:
    measure = tune_measurements.Measurements(Config(model="m.gguf", weights="as-is"), {}, 25)
    for _ in range(2):
        measure({}, 512)
    with pytest.raises(NoTimeLeft):
        measure({}, 512)
    assert (len(processes.settings), processes.now) == (2, 20.0)


def test_what_ends_for_lack_of_time_has_not_failed(processes: Processes) -> None:
    measure = tune_measurements.Measurements(Config(model="m.gguf", weights="as-is"), {}, 25)
    processes.error = ProgramError("ended by Aborted: no message")
    with pytest.raises(ProgramError):
        measure({}, 512)
    processes.took_s = 100.0
    with pytest.raises(NoTimeLeft):
        measure({}, 512)
    assert processes.now == 25.0


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_table_has_a_line_and_a_bar_for_each_change() -> None:
    failed = ProgramError("ended by Aborted: no message")
    slow = times(0.5, 0.5, 0.5)._replace(others=0.7)
    speeds = {"threads = 1": slow, 'flash_attn = "off"': failed, 'kv_type = "q8_0"': [times(2.0), failed]}
    shown = tune_table.table(Box(speeds).search(), 16)
    assert shown.split("\n")[:6] == [
        "settings                             one stream  16 streams   prompts  memory  three speeds together",
        "                                       tokens/s    tokens/s  tokens/s     MiB",
        "present settings                          100.0       200.0     400.0     600  ████████████████     100% best",
        "threads = 1                                50.0       100.0     200.0     600  ████████              50% busy",
        'flash_attn = "off"                            -           -         -       -  failed: '
        "ended by Aborted: no message",
        'kv_type = "q8_0"                          200.0       200.0     400.0     600  ████████████████████ 126% '
        "measured again: ended by Aborted: no message",
    ]


def test_the_notes_say_what_falsifies_the_numbers_and_what_is_missing() -> None:
    quiet = tune_table.notes(Box({}).search())
    assert quiet == "Prompts have 512 tokens. Memory is the whole process's."
    found = Box({"threads = 1": START._replace(others=0.86), 'kv_type = "q8_0"': times(2.0)}).search()
    found.not_measured.append({"n_ubatch": 128})
    assert tune_table.notes(found).split("\n")[1:] == [
        "Not measured, since no time was left (give more with --seconds): n_ubatch = 128.",
        "Busy: other programs used up to 0.9 cores meanwhile, so these numbers are too low and may mislead. Stop those "
        "programs, and tune again.",
        "Quantized KV cells (kv_type) cost a little of the answers' quality.",
    ]
    sleeping = tune_table.notes(Box({"threads = 1": START._replace(switches=164.0)}).search())
    assert "Barriers sleep: up to 164 context switches per token" in sleeping


def test_the_daemon_loads_the_lines(tmp_path: Path) -> None:
    config = Config(model="some model.gguf", n_ctx=4096)
    change = {"weights": "as-is", "threads": 4, "threads_batch": 8, "flash_attn": "on", "kv_type": "q8_0"}
    file = tmp_path / "tuned.toml"
    file.write_text(tune_table.toml(config, change))
    loaded = SETTINGS.load({"config": str(file), "n_ctx": 4096}, {}).config
    assert loaded == dataclasses.replace(config, **change, model=str(Path.cwd() / "some model.gguf"))
    # All of them, so that they take the place of others in a file.
    names = [
        "model",
        "weights",
        "threads",
        "threads_batch",
        "flash_attn",
        "kv_type",
        "kv_type_k",
        "kv_type_v",
        "n_ubatch",
    ]
    assert [line.split()[0] for line in file.read_text().splitlines()] == names
    assert "model" not in tune_table.toml(Config(), {})
