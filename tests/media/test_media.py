"""Images, recordings and films of any bytes become pictures and samples, or a ``MediaError``."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import random
import re
import resource
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import av
import media_files
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from media_files import BLACK, BLUE, GREEN, RED, WHITE, Colour, film, halves, image, pitch, recording, sine, wav
from PIL import Image

from umaserve.media import child, containers, film_decoder, images, sound_decoder, sounds, videos
from umaserve.media.errors import MediaError
from umaserve.media.images import Picture

T = TypeVar("T")


def pixels(picture: Picture) -> npt.NDArray[np.uint8]:
    assert len(picture.rgb) == 3 * picture.width * picture.height
    return np.frombuffer(picture.rgb, np.uint8).reshape(picture.height, picture.width, 3)


def colour_at(picture: Picture, x: float, y: float) -> Colour:
    """The colour at a share of the width and the height, each channel rounded to 0, 128 or 255."""
    pixel = pixels(picture)[int(y * picture.height), int(x * picture.width)]
    red, green, blue = (min((0, 128, 255), key=lambda level: abs(int(channel) - level)) for channel in pixel)
    assert max(abs(int(channel) - level) for channel, level in zip(pixel, (red, green, blue), strict=True)) <= 12
    return red, green, blue


def colour(picture: Picture) -> Colour:
    """The one colour of all of it."""
    (only,) = {colour_at(picture, x, y) for x in (0.1, 0.9) for y in (0.1, 0.9)}
    return only


def outcome(decode: Callable[[bytes], T], data: bytes) -> T | None:
    """The result, or ``None`` for a ``MediaError``; anything else is raised."""
    with contextlib.suppress(MediaError):
        return decode(data)
    return None


def hear(data: bytes) -> tuple[sounds.Samples, int]:
    """As ``sounds.decode_file``, in this process, which starts none."""
    return sound_decoder.decode(io.BytesIO(data))


def watch(data: bytes, stack_frames: int) -> videos.Film:
    """The same of ``videos.decode``."""
    return film_decoder.decode(io.BytesIO(data), stack_frames)


# Images.


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
def test_an_image_is_the_same_in_each_format(kind: str):
    picture = images.decode(image(kind))
    assert (picture.width, picture.height) == (40, 30)
    assert (colour_at(picture, 0.1, 0.5), colour_at(picture, 0.9, 0.5)) == (RED, BLUE)


@pytest.mark.parametrize("kind", ["EPS", "ICO", "PCX", "JPEG2000", "TGA", "PDF"])
def test_formats_that_nobody_needs_are_refused(kind: str):
    with pytest.raises(MediaError, match=r"expected an image \(PNG, .*AVIF\), got \d+ bytes of something else"):
        images.decode(image(kind))


def levels(mode: str) -> Image.Image:
    """A picture of 4 x 1 from black to white in a mode that counts to 65535."""
    values = np.array([[0, 0x4000, 0x8000, 0xFFFF]])
    return Image.fromarray(values.astype(np.uint16) if mode == "I;16" else values.astype(np.int32))


@pytest.mark.parametrize(("mode", "kind"), [("I;16", "PNG"), ("I;16", "TIFF"), ("I", "TIFF"), ("I", "PPM")])
def test_grey_of_16_bits_keeps_its_levels(mode: str, kind: str):
    picture = images.decode(image(kind, levels(mode)))
    assert pixels(picture)[0].tolist() == [[0] * 3, [64] * 3, [128] * 3, [255] * 3]


@pytest.mark.parametrize(
    ("mode", "kind"), [("1", "PNG"), ("L", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("YCbCr", "TIFF")]
)
def test_each_mode_comes_out_as_rgb(mode: str, kind: str):
    picture = images.decode(image(kind, halves(left=WHITE, right=BLACK).convert(mode)))
    assert (colour_at(picture, 0.1, 0.5), colour_at(picture, 0.9, 0.5)) == (WHITE, BLACK)


def transparent(mode: str) -> bytes:
    """A PNG whose left half is black and transparent, its right half black."""
    if mode in ("RGBA", "LA"):
        left = Image.new(mode, (20, 30), (0,) * len(mode))
        picture = Image.new(mode, (40, 30), (*(0,) * (len(mode) - 1), 255))
        picture.paste(left, (0, 0))
        return image("PNG", picture)
    grey = halves(left=(10, 10, 10), right=BLACK)
    if mode == "P":
        picture = grey.quantize(2)
        return image("PNG", picture, transparency=picture.getpixel((0, 0)))
    return image("PNG", grey.convert(mode), transparency=10 if mode == "L" else (10, 10, 10))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB"])
def test_what_is_transparent_shows_white(mode: str):
    picture = images.decode(transparent(mode))
    assert (colour_at(picture, 0.1, 0.5), colour_at(picture, 0.9, 0.5)) == (WHITE, BLACK)


def test_what_is_half_transparent_is_mixed_with_white():
    assert colour(images.decode(image("PNG", Image.new("RGBA", (9, 9), (0, 0, 0, 127))))) == (128, 128, 128)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize(("orientation", "top_left"), [(1, RED), (3, BLUE), (6, RED), (8, BLUE)])
def test_an_image_is_turned_upright(kind: str, orientation: int, top_left: Colour):
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = images.decode(image(kind, exif=exif))
    assert (picture.width, picture.height) == ((40, 30) if orientation < 5 else (30, 40))
    assert colour_at(picture, 0.1, 0.1) == top_left
    # A quarter turn lays the halves one above the other.
    assert (colour_at(picture, 0.9, 0.1) == top_left) == (orientation > 5)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_picture_is_taken(kind: str):
    others = [Image.new("RGB", (40, 30), GREEN), Image.new("RGB", (40, 30), BLUE)]
    data = image(kind, Image.new("RGB", (40, 30), RED), save_all=True, append_images=others)
    assert colour(images.decode(data)) == RED


@pytest.mark.parametrize(
    ("size", "kept"),
    [
        ((2000, 2000), (2000, 2000)),
        ((4000, 3000), (2309, 1732)),
        ((9000, 100), (4096, 45)),
        ((1, 100_000), (1, 4096)),
        ((100_000, 3), (4096, 1)),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_large_images_are_shrunk(size: tuple[int, int], kept: tuple[int, int], mode: str):
    picture = images.decode(image("PNG", Image.new(mode, size, (*GREEN, 255)[: len(mode)]), compress_level=1))
    assert (picture.width, picture.height) == kept
    assert colour(picture) == GREEN


def test_a_large_jpeg_is_shrunk_and_turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = images.decode(image("JPEG", halves((8000, 6000)), exif=exif))
    assert (picture.width, picture.height) == (1732, 2309)
    assert (colour_at(picture, 0.5, 0.1), colour_at(picture, 0.5, 0.9)) == (RED, BLUE)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**7), st.integers(1, 10**5))
def test_a_fitted_size_is_within_the_limits(width: int, height: int, most: int, edge: int):
    fitted_width, fitted_height = images.fitted(width, height, most, edge)
    assert 1 <= fitted_width <= min(width, edge)
    assert 1 <= fitted_height <= min(height, edge)
    assert fitted_width * fitted_height <= max(most, edge)
    if width <= edge and height <= edge and width * height <= most:
        assert (fitted_width, fitted_height) == (width, height)


def _png(data: bytes, size: tuple[int, int]) -> bytes:
    header = b"IHDR" + struct.pack(">II", *size) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def _swapped(old: Callable[[int, int], bytes]) -> Callable[[bytes, tuple[int, int]], bytes]:
    def swap(data: bytes, size: tuple[int, int]) -> bytes:
        assert data.count(old(40, 30)) == 1
        return data.replace(old(40, 30), old(*size))

    return swap


LIES = {
    "PNG": (_png, (60_000, 60_000)),
    "JPEG": (_swapped(lambda width, height: b"\x08" + struct.pack(">HH", height, width)), (60_000, 60_000)),
    "GIF": (lambda data, size: data[:6] + struct.pack("<HH", *size) + data[10:], (60_000, 60_000)),
    "BMP": (_swapped(lambda *size: struct.pack("<ii", *size)), (10**9, 10**9)),
    "PPM": (_swapped(lambda *size: b"%d %d" % size), (10**9, 10**9)),
    "TIFF": (
        lambda data, size: data.replace(struct.pack("<I", 40), struct.pack("<I", size[0])).replace(
            struct.pack("<I", 30), struct.pack("<I", size[1])
        ),
        (10**9, 10**9),
    ),
    "WEBP": (_swapped(lambda *size: struct.pack("<HH", *size)), (16_383, 16_383)),
    "AVIF": (_swapped(lambda *size: struct.pack(">II", *size)), (30_000, 30_000)),
}


@pytest.mark.parametrize("kind", LIES)
def test_an_image_whose_header_tells_of_a_huge_one_is_refused(kind: str):
    lie, size = LIES[kind]
    with pytest.raises(MediaError, match=r"^expected an? .*image"):
        images.decode(lie(image(kind), size))


@pytest.mark.parametrize(("size", "got"), [((8001, 8000), "8001 x 8000"), ((131_073, 1), "131073 x 1")])
def test_the_limits_of_an_image_are_named(size: tuple[int, int], got: str):
    with pytest.raises(MediaError) as caught:
        images.decode(_png(image(), size))
    assert str(caught.value) == f"expected an image of at most 64000000 pixels and 131072 per edge, got {got}"


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (Image.new("F", (3, 3)), "expected an image of whole numbers, got one of floating-point numbers"),
        (Image.new("I", (3, 3), 70_000), "expected an image of at most 16 bits per channel, got one of 32"),
        (Image.new("I", (3, 3), -1), "expected an image of at most 16 bits per channel, got one of 32"),
    ],
)
def test_values_without_a_known_white_are_refused(picture: Image.Image, message: str):
    with pytest.raises(MediaError, match=message):
        images.decode(image("TIFF", picture))


def noise(size: tuple[int, int] = (48, 36)) -> Image.Image:
    """A picture of which each part matters, and takes bytes in any format."""
    return Image.frombytes("RGB", size, random.Random(1).randbytes(3 * size[0] * size[1]))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF"])
def test_of_an_image_that_is_cut_off_nothing_is_shown(kind: str):
    data = image(kind, noise())
    whole = images.decode(data)
    lengths = {*range(0, len(data), len(data) // 60), *range(len(data) - 12, len(data))}
    shown = {length: decoded for length in lengths if (decoded := outcome(images.decode, data[:length])) is not None}
    # Of the last bytes some formats need none.
    assert all(picture == whole for picture in shown.values()), sorted(shown)
    assert len(shown) <= 16


def test_warnings_of_pillow_reach_nobody(caplog: pytest.LogCaptureFixture):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = image("TIFF", noise())
    many = bytearray(image("TIFF"))
    at = many.index(struct.pack("<HHI", 277, 3, 1)) + 8
    many[at : at + 2] = b"\xff\xff"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MediaError):
            images.decode(bytes(many))
        assert not caplog.records
        images.decode(image("JPEG", exif=exif.tobytes()[:-3] + b"\xff\xff\xff"))
        with pytest.raises(MediaError):
            images.decode(data[: len(data) - 40])


def test_a_picture_is_shrunk_by_a_factor():
    picture = images.decode(image())
    small = images.shrunk(picture, 0.5)
    assert (small.width, small.height) == (20, 15)
    assert (colour_at(small, 0.1, 0.5), colour_at(small, 0.9, 0.5)) == (RED, BLUE)
    assert images.shrunk(picture, 1.0) is picture
    tiny = images.shrunk(picture, 0.001)
    assert (tiny.width, tiny.height, len(tiny.rgb)) == (1, 1, 3)


# Sounds.


def test_pcm_is_taken_as_it_comes_and_clipped():
    samples = sounds.samples_of(struct.pack("<4f", 0.25, -0.5, 3.0, -7.0))
    assert samples.dtype == np.float32
    assert samples.tolist() == [0.25, -0.5, 1.0, -1.0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected float32 samples, 4 bytes each, at least one, got 0 bytes"),
        (b"12345", "expected float32 samples, 4 bytes each, at least one, got 5 bytes"),
        (struct.pack("<3f", 0, float("nan"), float("nan")), "expected finite samples, got nan at index 1"),
        (struct.pack("<3f", 0, 0, float("-inf")), "expected finite samples, got -inf at index 2"),
    ],
)
def test_pcm_that_is_none_is_refused(data: bytes, message: str):
    with pytest.raises(MediaError) as caught:
        sounds.samples_of(data)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (wav(sine()), "a WAV file"),
        # Of no whole number of samples, as those of a file may be.
        (wav(sine()[:-1]), "a WAV file"),
        (b"RF64" + wav(sine())[4:], "a WAV file"),
        (recording("mp3", "libmp3lame", sine()), "an MP3 file"),
        (recording("ogg", "libopus", sine(rate=48_000), 48_000), "an Ogg file"),
        (recording("flac", "flac", sine()), "a FLAC file"),
        (recording("mp4", "aac", sine()), "an MP4 file"),
        (recording("webm", "libopus", sine(rate=48_000), 48_000), "a WebM or Matroska file"),
        (recording("matroska", "pcm_s16le", sine()), "a WebM or Matroska file"),
    ],
    ids=itertools.count(),
)
def test_files_are_not_taken_for_samples(data: bytes, kind: str):
    with pytest.raises(MediaError) as caught:
        sounds.samples_of(data)
    assert str(caught.value) == f"expected float32 samples, got {kind}: decode it first"


@pytest.mark.parametrize(
    "magic", [b"RIFF", b"RF64", b"ID3\3", b"ID3\4", b"OggS", b"fLaC", b"\0\0\0\x1c", b"\x1aE\xdf\xa3"]
)
@given(following=st.lists(st.floats(-1, 1, width=32), max_size=20))
def test_samples_that_begin_as_a_file_does_are_samples(magic: bytes, following: list[float]):
    data = magic + np.array(following, "<f4").tobytes()
    assert sounds.samples_of(data).tolist()[1:] == following


@pytest.mark.parametrize(("rate", "wanted"), [(48_000, 16_000), (44_100, 16_000), (8_000, 24_000), (16_000, 16_000)])
def test_resampling_keeps_length_and_pitch(rate: int, wanted: int):
    samples = sounds.resampled(sine(440, 2.0, rate), rate, wanted)
    assert samples.dtype == np.float32
    assert abs(len(samples) - 2 * wanted) <= 1
    assert pitch(samples, wanted) == pytest.approx(440, abs=1)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.05)


def test_resampling_stays_within_bounds_and_leaves_a_sample():
    loud = np.sign(sine(100, 1.0, 48_000))
    assert np.abs(sounds.resampled(loud, 48_000, 16_000)).max() == 1.0
    assert sounds.resampled(loud[5:6], 384_000, 1000).tolist() == [1.0]


@pytest.mark.parametrize(
    ("kind", "codec", "rate"),
    [
        ("wav", "pcm_f32le", 8000),
        ("wav", "pcm_s16le", 44_100),
        ("mp3", "libmp3lame", 44_100),
        ("flac", "flac", 16_000),
        ("ogg", "libopus", 48_000),
        ("ogg", "flac", 22_050),
        ("mp4", "aac", 44_100),
        ("adts", "aac", 16_000),
        ("matroska", "pcm_s16le", 16_000),
    ],
)
def test_recordings_are_read_in_each_format(kind: str, codec: str, rate: int):
    samples, found = hear(recording(kind, codec, sine(880, 2.0, rate), rate))
    assert (samples.dtype, found) == (np.float32, rate)
    assert len(samples) == pytest.approx(2 * rate, abs=3000)
    assert pitch(samples, rate) == pytest.approx(880, abs=1)
    assert np.abs(samples[rate // 4 : rate]).max() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_channels_are_mixed_and_levels_kept(width: int, channels: int):
    samples, rate = hear(wav(sine(), 16_000, channels, width))
    assert rate == 16_000
    np.testing.assert_allclose(samples, sine(), atol=2 / 2 ** (8 * width - 1))


def test_sound_of_eight_channels_is_mixed_too():
    samples, rate = hear(recording("ogg", "libopus", sine(rate=48_000), 48_000, "7.1"))
    assert (len(samples), pitch(samples, rate)) == (48_000, pytest.approx(440, abs=1))
    assert np.abs(samples[rate // 4 :]).max() == pytest.approx(0.5, abs=0.05)


def test_a_recording_is_capped_while_it_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sounds, "MAX_SECONDS", 2)
    assert len(hear(wav(sine(seconds=2.0)))[0]) == 32_000
    with pytest.raises(MediaError) as caught:
        hear(wav(sine(seconds=2.1)))
    assert str(caught.value) == "expected at most 2 s of sound at 16000 samples per second, got more"


def test_a_recording_of_a_high_rate_is_capped_by_its_samples(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sounds, "_MAX_SAMPLES", 16_000)
    with pytest.raises(MediaError, match="at most 1 s of sound at 16000 samples per second"):
        hear(wav(sine(seconds=1.1)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"no sound",
            "expected a sound, got 8 bytes that are damaged, cut off, too large or of an unknown format",
        ),
        (b"", "expected a sound, got 0 bytes that are damaged, cut off, too large or of an unknown format"),
        (film([RED] * 5), "expected a sound, got a file without sound"),
        (wav(sine(seconds=0.0)), "expected a sound, got one without any sample that can be decoded"),
        (wav(sine(), rate=999), "expected from 1000 to 384000 samples per second, got 999"),
        (wav(sine(), rate=500_000), "expected from 1000 to 384000 samples per second, got 500000"),
        (recording("wav", "pcm_f32le", sine() * np.nan), "expected finite samples, got nan at index 0"),
        (recording("wav", "adpcm_ima_wav", sine()), "expected a common codec, got adpcm_ima_wav"),
        # Two files in a row are one of which the rate changes halfway.
        (
            recording("adts", "aac", sine(rate=16_000), 16_000) + recording("adts", "aac", sine(rate=22_050), 22_050),
            "expected one sample rate throughout, got 16000 and then 22050 per second",
        ),
    ],
    ids=itertools.count(),
)
def test_recordings_that_cannot_be_used_say_why(data: bytes, message: str):
    with pytest.raises(MediaError) as caught:
        hear(data)
    assert str(caught.value) == message


# Films.


def seconds(*colours: Colour, fps: int = 5) -> list[Colour]:
    return [colour for colour in colours for _ in range(fps)]


FIVE = (RED, GREEN, BLUE, WHITE, BLACK)
KINDS = [
    ("mp4", "libx264", {}),
    ("mp4", "libx264", {"g": "4", "bf": "2"}),
    ("mp4", "mpeg4", {"bf": "2"}),
    ("mov", "mjpeg", {}),
    ("matroska", "libx264", {"x264-params": "open-gop=1:keyint=7:bframes=3"}),
    ("webm", "libvpx-vp9", {}),
    ("webm", "libvpx", {}),
    ("avi", "mpeg4", {}),
]


@pytest.mark.parametrize(("kind", "codec", "options"), KINDS)
def test_a_film_gives_a_picture_each_second(kind: str, codec: str, options: dict[str, str]):
    shown = watch(film(seconds(*FIVE), kind=kind, codec=codec, **options), 1)
    assert [frame.time_s for frame in shown.frames] == [0, 1, 2, 3, 4]
    assert [[colour(picture) for picture in frame.pictures] for frame in shown.frames] == [[each] for each in FIVE]
    assert {(frame.pictures[0].width, frame.pictures[0].height) for frame in shown.frames} == {(64, 48)}
    assert (shown.samples, shown.rate) == (None, 0)


@pytest.mark.parametrize(("kind", "sound_codec"), [("mp4", "aac"), ("matroska", "pcm_s16le"), ("mp4", "libmp3lame")])
def test_a_film_has_its_sound(kind: str, sound_codec: str):
    shown = watch(film(seconds(RED, BLUE), kind=kind, sound=sine(660, 2.0), sound_codec=sound_codec), 1)
    assert [colour(frame.pictures[0]) for frame in shown.frames] == [RED, BLUE]
    assert shown.rate == 16_000
    assert shown.samples is not None
    assert len(shown.samples) == pytest.approx(32_000, abs=3000)
    assert pitch(shown.samples, shown.rate) == pytest.approx(660, abs=1)


@pytest.mark.parametrize(("kind", "codec", "options"), KINDS)
def test_pictures_between_two_frames_are_tiled(kind: str, codec: str, options: dict[str, str]):
    data = film([*FIVE, BLUE, BLUE, GREEN, RED, WHITE], size=(96, 64), kind=kind, codec=codec, **options)
    frames = watch(data, 5).frames
    assert [colour(frame.pictures[0]) for frame in frames] == [RED, BLUE]
    # Four in two rows of two.
    for frame, expected in zip(frames, ([GREEN, BLUE, WHITE, BLACK], [BLUE, GREEN, RED, WHITE]), strict=True):
        tiles = frame.pictures[1]
        assert (tiles.width, tiles.height) == (96, 64)
        assert [colour_at(tiles, x, y) for y in (0.25, 0.75) for x in (0.25, 0.75)] == expected


@pytest.mark.parametrize(
    ("stack_frames", "size", "expected"),
    [
        # Half a second in is the third picture's time; of the one in four, at 0.25, 0.5 and 0.75 s.
        (2, (96, 64), [BLUE]),
        (3, (96, 32), [GREEN, WHITE]),
        (4, (96, 64), [GREEN, BLUE, WHITE, BLACK]),
        # No more than there are.
        (16, (96, 64), [GREEN, BLUE, WHITE, BLACK]),
    ],
)
def test_the_tiling_is_near_a_square(stack_frames: int, size: tuple[int, int], expected: list[Colour]):
    (frame,) = watch(film(FIVE, size=(96, 64)), stack_frames).frames
    tiles = frame.pictures[1]
    columns, rows = math.ceil(math.sqrt(len(expected))), len(expected) // 2 or 1
    assert (tiles.width, tiles.height) == size
    found = [colour_at(tiles, (x + 0.5) / columns, (y + 0.5) / rows) for y in range(rows) for x in range(columns)]
    assert found == expected


def test_without_other_pictures_there_is_no_tiling():
    frames = watch(film([RED, GREEN, BLUE], fps=1), 5).frames
    assert [len(frame.pictures) for frame in frames] == [1, 1, 1]


@pytest.mark.parametrize(
    ("pictures", "fps", "times"),
    [
        (1, 25, [0.0]),
        (26, 25, [0.0, 1.0]),
        (64 * 2, 2, [float(second) for second in range(64)]),
        (128 * 2, 2, [2.0 * number for number in range(64)]),
        (3, 1, [0.0, 1.0, 2.0]),
    ],
)
def test_frames_come_each_second_or_are_spread_over_the_length(pictures: int, fps: int, times: list[float]):
    greys = [(level % 256,) * 3 for level in range(pictures)]
    frames = watch(film(greys, fps=fps, codec="mjpeg", kind="mov", size=(16, 16)), 1).frames
    assert [frame.time_s for frame in frames] == times
    found = [int(pixels(frame.pictures[0]).mean()) for frame in frames]
    assert found == pytest.approx([time * fps for time in times], abs=4)


def test_what_would_take_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch):
    data = film([RED] * 10, fps=5, size=(32, 32))
    monkeypatch.setattr(film_decoder, "_decoded", lambda *_: pytest.fail("it was begun"))
    monkeypatch.setattr(film_decoder, "_MAX_DECODED_PIXELS", 6 * 32 * 32 - 1)
    with pytest.raises(MediaError, match="expected a video that is faster to decode"):
        watch(data, 1)


def test_what_is_not_shown_is_not_decoded(monkeypatch: pytest.MonkeyPatch):
    data = film([RED] * 250, fps=5, g="5", bf="0", size=(32, 32))
    # Of each of the 50 seconds the key picture alone.
    monkeypatch.setattr(film_decoder, "_MAX_DECODED_PIXELS", 50 * 32 * 32)
    assert len(watch(data, 1).frames) == 50
    monkeypatch.setattr(film_decoder, "_MAX_DECODED_PIXELS", 49 * 32 * 32)
    with pytest.raises(MediaError) as caught:
        watch(data, 1)
    assert str(caught.value) == "expected a video that is faster to decode: shorter, smaller, or with more key frames"


@pytest.mark.parametrize(
    ("matrix", "corners"),
    [
        (media_files.TURNED_RIGHT, (RED, RED)),
        (media_files.TURNED_LEFT, (BLUE, BLUE)),
    ],
)
def test_a_film_is_turned_upright(matrix: tuple[int, ...], corners: tuple[Colour, Colour]):
    (frame,) = watch(film([halves((64, 48))] * 5, matrix=matrix), 5).frames
    picture = frame.pictures[0]
    assert (picture.width, picture.height) == (48, 64)
    assert (colour_at(picture, 0.1, 0.1), colour_at(picture, 0.9, 0.1)) == corners
    assert colour_at(picture, 0.5, 0.9) == ({RED, BLUE} - {corners[0]}).pop()
    tiles = frame.pictures[1]
    assert (tiles.width, tiles.height) == (48, 64)
    assert colour_at(tiles, 0.1, 0.05) == corners[0]


def test_large_pictures_of_a_film_are_shrunk():
    (frame,) = watch(film([halves((2048, 1024))] * 4, 4, size=(2048, 1024), preset="ultrafast"), 2).frames
    assert [(picture.width, picture.height) for picture in frame.pictures] == [(1414, 707), (1414, 707)]
    assert (colour_at(frame.pictures[0], 0.1, 0.5), colour_at(frame.pictures[1], 0.9, 0.5)) == (RED, BLUE)


@pytest.mark.parametrize("late_s", [-0.5, 0.5])
def test_sound_begins_with_the_first_picture(late_s: float):
    data = film(seconds(RED, BLUE), kind="matroska", start_s=1.0, sound=sine(), sound_codec="pcm_s16le", late_s=late_s)
    shown = watch(data, 1)
    assert [(frame.time_s, colour(frame.pictures[0])) for frame in shown.frames] == [(0, RED), (1, BLUE)]
    assert shown.samples is not None
    assert len(shown.samples) == pytest.approx(16_000 * (1 + late_s), abs=100)
    heard = np.abs(shown.samples[: 16_000 // 2 - 100]).max()
    assert heard == (pytest.approx(0.5, abs=0.01) if late_s < 0 else 0)


def with_size(data: bytes, size: tuple[int, int]) -> bytes:
    """An AVI of Motion JPEG that says so in its header and in each picture."""
    assert struct.pack(">HH", 48, 64) in data
    changed = data.replace(struct.pack("<II", 64, 48), struct.pack("<II", *size))
    return changed.replace(b"\x08" + struct.pack(">HH", 48, 64), b"\x08" + struct.pack(">HH", *reversed(size)))


FILM = film(seconds(RED, BLUE))
TABLE = FILM.index(b"stsz") + 8
"""Where the film's table says how many bytes each packet has, 0 for those told one by one."""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a video, got 0 bytes that are damaged, cut off, too large or of an unknown format"),
        (image(), r"expected a video, got \d+ bytes that are damaged, cut off, too large or of an unknown format"),
        (
            FILM[:-600],
            "expected a common codec, got an unknown one",
        ),
        (
            FILM[:TABLE] + struct.pack(">I", len(FILM)) + FILM[TABLE + 4 :],
            "expected an intact file, got one that is damaged or cut off",
        ),
        (FILM[:-100], "expected a video, got one without frames"),
        (wav(sine()), "expected a video, got a file without a video track"),
        (film([RED] * 5, codec="ffv1", kind="matroska"), "expected a common codec, got ffv1"),
        (
            with_size(film([RED] * 5, codec="mjpeg", kind="avi"), (60_000, 60_000)),
            r"expected a video, got \d+ bytes that are damaged, cut off, too large or of an unknown format",
        ),
    ],
    ids=itertools.count(),
)
def test_films_that_cannot_be_used_say_why(data: bytes, message: str):
    with pytest.raises(MediaError) as caught:
        watch(data, 1)
    assert re.fullmatch(message, str(caught.value))


@pytest.mark.parametrize("codec", ["libx264", "libvpx", "mjpeg"])
def test_films_of_too_large_pictures_are_refused(codec: str, monkeypatch: pytest.MonkeyPatch):
    data = film([RED] * 5, kind="matroska", codec=codec)
    for module in (containers, film_decoder):
        monkeypatch.setattr(module, "MAX_FRAME_PIXELS", 64 * 48)
    assert watch(data, 1).frames
    for module in (containers, film_decoder):
        monkeypatch.setattr(module, "MAX_FRAME_PIXELS", 64 * 48 - 1)
    # Some of ffmpeg's decoders forget the size that they refuse.
    with pytest.raises(MediaError, match=r"of at most 3071 pixels per frame, got 64 x 48|too large"):
        watch(data, 1)


def test_a_film_whose_pictures_grow_on_the_way_is_refused(monkeypatch: pytest.MonkeyPatch):
    small, large = (
        film([RED] * 5, codec="mjpeg", kind="avi"),
        film([BLUE] * 5, codec="mjpeg", kind="avi", size=(80, 48)),
    )
    # The index at the end is left out, so that one list of pictures follows the other.
    grown = bytearray(small[: small.index(b"idx1")] + large[large.index(b"movi") + 4 : large.index(b"idx1")])
    assert [colour(frame.pictures[0]) for frame in watch(bytes(grown), 1).frames] == [RED, BLUE]
    monkeypatch.setattr(containers, "MAX_FRAME_PIXELS", 64 * 48)
    with pytest.raises(MediaError, match="too large"):
        watch(bytes(grown), 1)


def test_the_length_of_a_film_is_capped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(film_decoder, "MAX_SECONDS", 1)
    with pytest.raises(MediaError) as caught:
        watch(FILM, 1)
    assert str(caught.value) == "expected a video of at most 1 s, got 2 s"


def test_the_sound_of_a_film_is_capped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sounds, "MAX_SECONDS", 1)
    with pytest.raises(MediaError, match="expected at most 1 s of sound at 16000 samples per second, got more"):
        watch(film(seconds(RED, BLUE), sound=sine(seconds=2.0)), 1)


def test_the_packets_of_a_file_are_capped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(containers, "MAX_PACKETS", 9)
    with pytest.raises(MediaError) as caught:
        watch(FILM, 1)
    assert str(caught.value) == "expected a file of at most 9 packets, got more"


def test_silence_before_the_sound_of_a_film_counts_as_sound(monkeypatch: pytest.MonkeyPatch):
    data = film(seconds(RED, BLUE), kind="matroska", sound=sine(), sound_codec="pcm_s16le", late_s=1.5)
    assert len(watch(data, 1).samples) == pytest.approx(40_000, abs=100)
    monkeypatch.setattr(sounds, "MAX_SECONDS", 2)
    with pytest.raises(
        MediaError, match="expected a video whose sound begins with it, got one whose sound begins after 1"
    ):
        watch(data, 1)


# A file that names another one.


@pytest.mark.parametrize(
    ("playlist", "kind"),
    [
        ("#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nfilm.ts\n#EXT-X-ENDLIST\n", "hls"),
        ("ffconcat version 1.0\nfile film.ts\n", "concat"),
    ],
)
def test_a_playlist_opens_no_file(playlist: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "film.ts").write_bytes(film(seconds(RED, BLUE), kind="mpegts", sound=sine(seconds=2.0)))
    monkeypatch.chdir(tmp_path)

    class Named(io.BytesIO):
        name = "list.m3u8"

    # ffmpeg itself follows it.
    with av.open(Named(playlist.encode())) as container:
        assert container.format.name.split(",")[0] == kind
        assert next(container.decode(video=0)).width == 64
    for file in (io.BytesIO, Named):
        for decode in (sound_decoder.decode, lambda file: film_decoder.decode(file, 1)):
            with pytest.raises(MediaError, match="of an unknown format"):
                decode(file(playlist.encode()))


def test_no_file_can_name_another_one():
    with pytest.raises(PermissionError):
        containers._refuse("/etc/passwd", 1, {})


# Anything at all.


FILES = {
    "image": [image(kind, noise()) for kind in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "AVIF")],
    "recording": [
        wav(sine(seconds=0.1)),
        recording("mp3", "libmp3lame", sine(seconds=0.3)),
        recording("flac", "flac", sine(seconds=0.3)),
        recording("mp4", "aac", sine(seconds=0.3)),
        recording("ogg", "libopus", sine(seconds=0.3, rate=48_000), 48_000),
    ],
    "film": [
        film(FIVE, sound=sine(seconds=0.5)),
        film(FIVE, kind="matroska", sound=sine(seconds=0.5)),
        film(FIVE, kind="avi", codec="mpeg4", sound=sine(seconds=0.5)),
        film(FIVE, kind="webm", codec="libvpx-vp9"),
        film(FIVE, kind="mov", codec="mjpeg"),
    ],
}
DECODERS: dict[str, Callable[[bytes], object]] = {
    "image": images.decode,
    "recording": hear,
    "film": lambda data: watch(data, 3),
}


@st.composite
def damaged(draw: st.DrawFn, kind: str) -> bytes:
    data = bytearray(draw(st.sampled_from(FILES[kind])))
    places = st.integers(0, len(data) - 1) | st.integers(0, min(600, len(data) - 1))
    for place, value in draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        data[place] = value
    length = draw(st.none() | st.integers(0, len(data)))
    return bytes(data[:length])


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """As the decoders have in the process that is theirs."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + child.MAX_MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("kind", DECODERS)
@given(data=st.data())
def test_whatever_comes_gives_a_result_or_a_media_error(kind: str, data: st.DataObject):
    file = data.draw(damaged(kind) | st.binary(max_size=200))
    with little_memory(), contextlib.suppress(MemoryError):
        outcome(DECODERS[kind], file)


def test_damaged_files_are_not_written_about(capfd: pytest.CaptureFixture[str]):
    rng = random.Random(3)
    for kind, decode in DECODERS.items():
        for data in FILES[kind]:
            for _ in range(5):
                place = rng.randrange(len(data) - 8)
                outcome(decode, data[:place] + rng.randbytes(8) + data[place + 8 :])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("PIL", lambda: images.decode(b"")),
        ("PIL", lambda: images.shrunk(Picture(2, 2, bytes(12)), 0.5)),
        ("av", lambda: hear(b"")),
        ("av", lambda: watch(b"", 1)),
        ("soxr", lambda: sounds.resampled(sine(), 16_000, 8000)),
    ],
)
def test_a_missing_package_is_named_with_its_cure(
    package: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MediaError) as caught:
        use()
    assert str(caught.value) == (
        f"can't be read, since the server lacks the Python package {package}: pip install 'umaserve[media]'"
    )
