"""What an MP4 or QuickTime file says of itself that would cost ffmpeg memory which nothing in the file stands for."""

from __future__ import annotations

from collections.abc import Iterator

from umaserve.media.errors import MediaError

MAX_SAMPLES = 5_000_000
"""Far more than there are packets in a film, for each sample of uncompressed sound counts as one."""
_MAX_BOXES = 100_000

# Where a box's count of samples lies behind its name. ffmpeg makes an entry of 24 bytes and more for each of them, also
# for those that have no bytes in the file (ISO/IEC 14496-12, 8.7.3 and 8.8.8).
_COUNTS = {b"stsz": 12, b"stz2": 12, b"trun": 8}


def check(data: bytes) -> None:
    """Raise ``MediaError`` where the tables outside of the media data tell of more than ``MAX_SAMPLES`` samples, or are
    compressed. Files of other formats pass."""
    samples = 0
    for start, end in _tables(data):
        # QuickTime's compressed header, long out of use.
        if data.find(b"cmov", start, end) >= 0:
            raise MediaError("expected an MP4 file whose header isn't compressed")
        for name, offset in _COUNTS.items():
            at = data.find(name, start, end)
            while at >= 0:
                samples += 1 + int.from_bytes(data[at + offset : at + offset + 4], "big")
                if samples > MAX_SAMPLES:
                    raise MediaError(
                        f"expected an MP4 file of at most {MAX_SAMPLES} samples, got one that tells of more"
                    )
                at = data.find(name, at + 1, end)


def _tables(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the file's outermost boxes lie, other than those of media data, in which any bytes may stand by chance."""
    start = 0
    for _ in range(_MAX_BOXES):
        if start + 8 > len(data):
            return
        size, name = int.from_bytes(data[start : start + 4], "big"), data[start + 4 : start + 8]
        if size == 1:
            size = int.from_bytes(data[start + 8 : start + 16], "big")
        end = start + size if size >= 8 else len(data)
        # In other formats these bytes are none that name a box.
        if name != b"mdat" and name.isalnum():
            yield start, end
        start = end
    raise MediaError(f"expected an MP4 file of at most {_MAX_BOXES} parts, got more")
