"""Images of untrusted files: checked by their header, decoded by Pillow, turned upright, laid on white, and shrunk."""

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

# Raster formats of one file, whose decoders start no other program. JPEG reads MPO too, which cameras write.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
# Pillow also tells its logger; a daemon's log is no place for what clients send.
logging.getLogger("PIL").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Picture:
    """``rgb``: three bytes a pixel, row by row from the top, without padding."""

    width: int
    height: int
    rgb: bytes


def decode(data: bytes) -> Picture:
    """The image of a file, the first one of several; raises ``MediaError``.

    Shrunk to at most ``MAX_KEPT_PIXELS`` and ``MAX_KEPT_EDGE``. The proportions are kept, but no edge gets shorter than
    one pixel: of 1 x 100000 is left 1 x 4096.
    """
    with needed():
        from PIL import Image, UnidentifiedImageError
    # Nor are its warnings of damage that it can live with.
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
        # Pillow's decoders let out whatever Python raises on values that make no sense.
        except Exception as error:
            raise MediaError(
                f"expected a whole image, got {len(data)} bytes of one that is damaged, cut off or of a rare kind"
            ) from error


def _decoded(data: bytes) -> Picture:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
        width, height = file.size
        if width * height > MAX_PIXELS or max(width, height) > MAX_EDGE:
            raise MediaError(
                f"expected an image of at most {MAX_PIXELS} pixels and {MAX_EDGE} an edge, got {width} x {height}"
            )
        kept = fitted(width, height, MAX_KEPT_PIXELS, MAX_KEPT_EDGE)
        # JPEG alone can leave pixels out while it decodes.
        file.draft(None, kept)
        file.load()
        image = _resized(_of_eight_bits(file), kept)
    # Afterwards, since it copies; the place of the edges is still told by the image's info.
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return Picture(*image.size, image.tobytes())


def _of_eight_bits(image: Pixels) -> Pixels:
    """The image as RGB, or as RGBA where it is transparent anywhere."""
    from PIL import Image

    # Pillow would clip these to 255.
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise MediaError("expected an image of at most 16 bits a channel, got one of 32")
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
    # The gap: what is far larger is first averaged by whole numbers, which is quick and can't be seen.
    return image.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def fitted(width: int, height: int, max_pixels: int, max_edge: int) -> tuple[int, int]:
    """The size itself, or the largest of its proportions within the limits; no edge gets below 1."""
    factor = min(1.0, math.sqrt(max_pixels / (width * height)), max_edge / max(width, height))
    return max(1, int(width * factor)), max(1, int(height * factor))


def shrunk(picture: Picture, factor: float) -> Picture:
    """The picture with edges of ``factor``, from above 0 to 1, of their lengths; no edge below 1."""
    assert 0 < factor <= 1
    size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    if size == (picture.width, picture.height):
        return picture
    with needed():
        from PIL import Image
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.rgb)
    return Picture(*size, _resized(image, size).tobytes())
