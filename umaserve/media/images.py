"""Decodes untrusted image files with Pillow: checks the header, rotates by EXIF, flattens on white, and downscales."""

from __future__ import annotations

import io
import logging
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from umaserve.media.errors import MediaError, needed

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels

MAX_PIXELS = 64_000_000
MAX_EDGE = 2**17
MAX_KEPT_PIXELS = 4_000_000
MAX_KEPT_EDGE = 4096

# Raster formats whose decoders start no other program. JPEG covers MPO, which cameras write.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
# Pillow logs what it finds in files, which must not reach the daemon's log.
logging.getLogger("PIL").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Picture:
    """``rgb``: ``3 * width * height`` bytes, rows from the top, without padding."""

    width: int
    height: int
    rgb: bytes


def decode(data: bytes) -> Picture:
    """The first image of a file, downscaled to ``MAX_KEPT_PIXELS`` and ``MAX_KEPT_EDGE``. Raises ``MediaError``.

    The aspect ratio is kept, except that no edge gets shorter than one pixel: 1 x 100000 becomes 1 x 4096.
    """
    with needed():
        from PIL import Image, UnidentifiedImageError
    # Pillow warns of damage that it tolerates.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _decoded(data)
        except MediaError:
            raise
        except UnidentifiedImageError as error:
            raise MediaError(
                f"expected an image ({', '.join(_FORMATS)}), got {len(data)} bytes of something else"
            ) from error
        except Image.DecompressionBombError as error:
            raise MediaError(f"expected an image of at most {MAX_PIXELS} pixels, got more") from error
        # Pillow's decoders raise arbitrary exceptions on invalid values.
        except Exception as error:
            raise MediaError(
                f"expected an intact image, got {len(data)} bytes that are damaged, cut off or of an unsupported kind"
            ) from error


def _decoded(data: bytes) -> Picture:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
        width, height = file.size
        if width * height > MAX_PIXELS or max(width, height) > MAX_EDGE:
            raise MediaError(
                f"expected an image of at most {MAX_PIXELS} pixels and {MAX_EDGE} per edge, got {width} x {height}"
            )
        kept = fitted(width, height, MAX_KEPT_PIXELS, MAX_KEPT_EDGE)
        # Only JPEG can be downscaled while decoding.
        file.draft(None, kept)
        file.load()
        image = _resized(_of_eight_bits(file), kept)
    # After downscaling, since it copies the pixels; the EXIF data is still in the image's info.
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return Picture(*image.size, image.tobytes())


def _of_eight_bits(image: Pixels) -> Pixels:
    """The image as RGB, or as RGBA if it has transparency."""
    from PIL import Image

    # Pillow would clip 16-bit values to 255.
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise MediaError("expected an image of at most 16 bits per channel, got one of 32")
        grey = Image.fromarray((values >> 8).astype(np.uint8))
        grey.info = {key: value for key, value in image.info.items() if key != "transparency"}
        image = grey
    elif image.mode == "F":
        raise MediaError("expected an image of whole numbers, got one of floating-point numbers")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _resized(image: Pixels, size: tuple[int, int]) -> Pixels:
    from PIL import Image

    if image.size == size:
        return image
    # reducing_gap: much larger images are first averaged by an integer factor, which is faster.
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def fitted(width: int, height: int, max_pixels: int, max_edge: int) -> tuple[int, int]:
    """The largest size within the limits and with the same aspect ratio, at most the size itself; no edge below 1."""
    factor = min(1.0, math.sqrt(max_pixels / (width * height)), max_edge / max(width, height))
    return max(1, int(width * factor)), max(1, int(height * factor))


def shrunk(picture: Picture, factor: float) -> Picture:
    """The picture with both edges scaled by ``factor``, 0 < ``factor`` <= 1; no edge below 1."""
    assert 0 < factor <= 1
    size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    if size == (picture.width, picture.height):
        return picture
    with needed():
        from PIL import Image
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    return Picture(*size, _resized(image, size).tobytes())
