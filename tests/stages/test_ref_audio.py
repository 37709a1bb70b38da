"""The default reference voice: read at the start, in whatever form, and told in the contract's."""

from __future__ import annotations

import base64
import wave
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from umaserve.core.errors import ConfigError
from umaserve.stages import ref_audio

pytest.importorskip("av", reason="no media packages are installed (umaserve[media])")


def wav(path: Path, samples: np.ndarray[Any, Any], rate: int = 16_000, width: int = 2, channels: int = 1) -> Path:
    """Of samples from -1 to 1."""
    values = np.round(samples * (2 ** (8 * width - 1) - 1)).astype("<i4")
    if width == 1:
        values += 128
    data = values[:, None].view("u1")[:, :width].tobytes()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


def tone(seconds: float, rate: int = 16_000) -> np.ndarray[Any, Any]:
    """440 Hz at half of full scale."""
    return 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)


def told(path: Path) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    body = orjson.loads(ref_audio.load(str(path)).reply())
    samples = np.frombuffer(base64.b64decode(body.pop("base64")), "<f4")
    return body, samples


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_wav_of_any_width_becomes_float32(tmp_path: Path, width: int) -> None:
    body, samples = told(wav(tmp_path / "Ann.wav", tone(0.5), width=width))
    assert body == {"name": "Ann.wav", "duration": 0.5, "sample_rate": 16_000}
    assert np.abs(samples - tone(0.5)).max() < 2 ** (2 - 8 * width) + 1e-6


@pytest.mark.parametrize("rate", [8000, 44_100, 48_000])
def test_another_rate_becomes_16_khz(tmp_path: Path, rate: int) -> None:
    body, samples = told(wav(tmp_path / "a.wav", tone(1.0, rate), rate))
    assert body["duration"] == pytest.approx(1.0, abs=0.001)
    inner = slice(1000, -1000)  # Filters ring at the edges.
    assert np.abs(samples[inner] - tone(1.0)[: len(samples)][inner]).max() < 0.01


def test_channels_are_mixed(tmp_path: Path) -> None:
    both = np.stack([tone(0.5), np.zeros(8000)], axis=1).reshape(-1)
    _body, samples = told(wav(tmp_path / "a.wav", both, channels=2))
    assert np.abs(samples - tone(0.5) / 2).max() < 0.001


def test_its_length_is_not_counted_at_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = ref_audio.load(str(wav(tmp_path / "a.wav", tone(0.5))))
    monkeypatch.delattr(base64, "b64decode")
    assert orjson.loads(loaded.reply())["duration"] == 0.5


@pytest.mark.parametrize("name", ["a.f32", "a.PCM"])
def test_raw_samples_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(tone(0.5).astype("<f4").tobytes())
    body, samples = told(path)
    assert body == {"name": name, "duration": 0.5, "sample_rate": 16_000}
    assert samples.tobytes() == path.read_bytes()


def test_a_minute_is_enough(tmp_path: Path) -> None:
    body, samples = told(wav(tmp_path / "a.wav", np.zeros(8000 * 61), 8000))
    assert (body["duration"], len(samples)) == (60.0, 960_000)


WRONG = {
    "absent.wav": (None, "can't be read: No such file or directory"),
    "text.wav": (b"hello", "expected a sound, got 5 bytes that are "),
    "odd.f32": (b"hello", "expected float32 samples"),
    "nan.f32": (np.array([np.nan], "<f4").tobytes(), "expected finite samples, got nan"),
    "empty.pcm": (b"", "expected float32 samples"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_recording_is_refused_in_a_line(tmp_path: Path, name: str) -> None:
    data, said = WRONG[name]
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        ref_audio.load(str(path))
    assert str(caught.value).startswith(f"ref_audio {path}: {said}")
    assert str(caught.value).endswith(": name a sound file, such as a WAV, with --ref-audio")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with path.open("wb") as file:
        file.truncate(ref_audio.MAX_BYTES + 1)
    with pytest.raises(ConfigError, match="expected at most 64 MiB, got more"):
        ref_audio.load(str(path))
