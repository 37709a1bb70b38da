"""Speech is encoded as it comes: the files decode to the same sound, however it was cut."""

from __future__ import annotations

import io
import sys
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from media_files import pitch, sine

from umaserve.media import sound_decoder
from umaserve.media.errors import MediaError
from umaserve.media.sound_encoder import Format, SoundEncoder, formats

pytest.importorskip("av", reason="no media packages are installed (umaserve[media])")

RATE = 24_000
MAGIC: dict[Format, bytes] = {"mp3": b"\xff\xf3", "opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC"}
each_format = pytest.mark.parametrize("audio_format", MAGIC)


def encoded(audio_format: Format, *parts: npt.NDArray[np.float32]) -> bytes:
    encoder = SoundEncoder(audio_format, RATE)
    return b"".join([encoder.encode(part) for part in parts]) + encoder.finish()


def test_all_formats_can_be_written() -> None:
    assert set(formats()) == set(MAGIC)


@each_format
def test_a_file_decodes_to_the_same_sound(audio_format: Format) -> None:
    sound = sine(440.0, 2.0, RATE)
    data = encoded(audio_format, sound)
    assert data.startswith(MAGIC[audio_format])
    samples, rate = sound_decoder.decode(io.BytesIO(data))
    # Opus is always decoded to 48 kHz.
    assert rate == (2 * RATE if audio_format == "opus" else RATE)
    # Encoders add up to two frames of silence, at the begin and the end.
    assert 2.0 - 1e-3 <= len(samples) / rate <= 2.1
    middle = samples[rate // 2 : 3 * rate // 2]
    assert pitch(middle, rate) == pytest.approx(440.0, abs=2)
    assert float(np.sqrt(np.mean(middle**2))) == pytest.approx(0.5 / np.sqrt(2), rel=0.06)


def test_flac_keeps_each_sample() -> None:
    sound = sine(440.0, 1.0, RATE)
    samples, _rate = sound_decoder.decode(io.BytesIO(encoded("flac", sound)))
    assert np.abs(samples - sound).max() < 1 / 32767


@each_format
@settings(max_examples=10)
@given(cuts=st.lists(st.integers(0, RATE // 2), max_size=6))
def test_the_file_does_not_depend_on_how_the_sound_was_cut(audio_format: Format, cuts: list[int]) -> None:
    sound = sine(300.0, 0.5, RATE)
    edges = [0, *sorted(cuts), len(sound)]
    parts = [sound[start:end] for start, end in pairwise(edges)]
    assert encoded(audio_format, *parts) == encoded(audio_format, sound)


@each_format
def test_bytes_come_while_there_is_more_to_come(audio_format: Format) -> None:
    encoder = SoundEncoder(audio_format, RATE)
    second = sine(440.0, 1.0, RATE)
    sizes = [len(encoder.encode(second)) for _ in range(5)]
    # The first bytes hold the header and lack what the encoder looks ahead.
    assert min(sizes[1:]) > 0.9 * max(sizes[1:])
    assert sizes[0] > 0.7 * sizes[1]
    assert len(encoder.finish()) < sizes[1]


@each_format
def test_the_loudest_samples_do_not_wrap(audio_format: Format) -> None:
    square = np.sign(sine(100.0, 1.0, RATE)).astype(np.float32)
    samples, rate = sound_decoder.decode(io.BytesIO(encoded(audio_format, square)))
    assert pitch(samples, rate) == pytest.approx(100.0, abs=2)
    assert float(np.abs(samples).mean()) > 0.8


@each_format
def test_a_file_without_a_sound_is_whole(audio_format: Format) -> None:
    assert encoded(audio_format) == encoded(audio_format, np.zeros(0, np.float32))
    assert encoded(audio_format)[:4] in (MAGIC[audio_format], b"")


def test_without_the_media_packages_there_is_no_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert formats() == ()
    with pytest.raises(MediaError, match=r"the server lacks the Python package av: pip install 'umaserve\[media\]'"):
        SoundEncoder("mp3", RATE)


def test_an_encoder_that_ffmpeg_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import av

    monkeypatch.setattr(av, "codecs_available", frozenset({"flac"}))
    with pytest.raises(MediaError, match="the server's PyAV lacks libopus"):
        SoundEncoder("opus", RATE)
