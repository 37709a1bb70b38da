"""The media of a conversation as pieces of its prompt: decoded, laid out by the projector, cached for the next turn."""

from __future__ import annotations

import binascii
import hashlib
import io
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from umaserve.core.errors import Fault, RequestError
from umaserve.core.requests import Audio, Base64, ChatTurn, Image, Media, Sound, Video
from umaserve.engine.llama.model import Model
from umaserve.engine.media.projector import MediaChunk, Piece, Projector, Samples, media_chunks
from umaserve.media import images, sounds, videos
from umaserve.media.errors import MediaError
from umaserve.media.images import Picture
from umaserve.sessions.engine_api import Span, media_ids

BASE64_STEP = 1 << 16
MAX_DECODING_S = 120
"""Most seconds for a request's media. After this time, the remaining ones are refused: the media of all other requests
wait meanwhile."""
SHRINKINGS = 6
"""How often a picture is made smaller until the projector cuts it into few enough slices."""
_OPEN_ID, _CLOSE_ID = "<image_id>", "</image_id>"
"""Marks around an image's number, from 0, with which MiniCPM-V was trained. llama.cpp's mtmd doesn't insert them."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt as token ids; within ``spans``, the ids that stand for media (``engine_api.media_ids``)."""

    tokens: Sequence[int]
    spans: Sequence[Span]
    sound_s: float = 0.0
    """Seconds of sound in the prompt."""


class MediaReader:
    """Makes prompts of turns with attachments; ``projector`` is the model's, if it has one.

    Used on the thread that prepares media, except ``shed``. Media that were laid out, and their embeddings, are cached
    for the same tenant, in ``cache_bytes`` of host memory.
    """

    def __init__(
        self, model: Model, projector: Projector | None, *, max_tokens_each: int, n_ubatch: int, cache_bytes: int
    ) -> None:
        """``max_tokens_each``: the limit of one prompt's media; ``n_ubatch``: the tokens of one ubatch."""
        self._model = model
        self._projector = projector
        self._max_tokens = max_tokens_each
        self._n_ubatch = n_ubatch
        self._cache = _Cache(cache_bytes)
        self._knows_image_ids = model.has_token(_OPEN_ID)

    def prompt(
        self,
        turns: Sequence[ChatTurn],
        render: Callable[[Sequence[ChatTurn]], str],
        tenant: str | None,
        wanted: Callable[[], bool],
        tokenize: Callable[..., list[int]],
    ) -> Prompt:
        """The prompt that ``render`` and ``tokenize`` (as ``Model.tokenize``) make of the turns, with their media in
        place; raises ``RequestError``. With the tenant ``None``, the cache is not used."""
        media = [attachment.media for turn in turns for attachment in turn.attachments]
        laid_out: list[list[Piece]] = []
        room = _Room(self._max_tokens, wanted)
        for one in media:
            room.begin(one.field)
            laid_out.append(self._pieces(one, tenant, room))
        # Random, so that no text of a client can contain it; and no JSON, which templates write in their own way.
        mark = f"[media-{secrets.token_hex(16)}]"
        texts = render(_marked(turns, mark)).split(mark)
        if len(texts) != len(media) + 1:
            problem = "the model's chat template leaves out or repeats an image or a sound"
            raise RequestError(Fault.BAD_REQUEST, "messages", problem)
        if not texts[-1]:
            raise RequestError(
                Fault.BAD_REQUEST, "messages", "the model's chat template puts no text after the last image or sound"
            )
        several = sum(isinstance(one, Image) for one in media) > 1
        index = 0
        first = tokenize(texts[0])
        end = [first.pop()] if self._model.adds_eos else []
        pieces: list[Piece] = [first]
        for one, its_pieces, before, after in zip(media, laid_out, texts[:-1], texts[1:], strict=True):
            if several and isinstance(one, Image):
                pieces.append(self._text(self._number(one, index, before)))
                index += 1
            pieces += its_pieces
            pieces.append(tokenize(after, begins=False))
        return _joined([*pieces, end])

    def _number(self, image: Image, index: int, before: str) -> str:
        """The text that numbers one of several images, after the text ``before``; ``index`` counts from 0."""
        if image.numbered is False:
            return ""
        if self._knows_image_ids:
            return f"{_OPEN_ID}{index}{_CLOSE_ID}"
        if image.numbered is None:
            return ""
        return f"Image {index + 1}: " if before.endswith("\n") or not before else f"\nImage {index + 1}: "

    def shed(self) -> None:
        """Clear the cache, since memory is short."""
        self._cache.clear()

    def _text(self, text: str) -> list[int]:
        return self._model.tokenize(text, begins=False)

    # -- one image, recording or video ---------------------------------------------------------------------------

    def _pieces(self, media: Media, tenant: str | None, room: _Room) -> list[Piece]:
        projector = self._capable(media)
        digest = _digest(media)
        found = None if tenant is None else self._cache.get((tenant, digest))
        if found is not None:
            room.take(found)
            return found
        pieces: list[Piece] = []
        try:
            for some in self._laid_out(media, projector, digest):
                room.take(some)
                pieces += some
        except (MediaError, ValueError) as error:
            raise _refused(media, str(error)) from None
        for chunk in media_chunks(pieces):
            if chunk.whole and chunk.tokens > self._n_ubatch:
                what = (
                    f"the model needs {chunk.tokens} of its tokens in one pass, and the daemon allows {self._n_ubatch}"
                )
                raise _refused(media, f"{what}: raise --n-batch and --n-ubatch")
        if tenant is not None:
            self._cache.put((tenant, digest), pieces)
        return pieces

    def _capable(self, media: Media) -> Projector:
        """The projector; raises ``RequestError`` where it doesn't take such media."""
        sound = isinstance(media, Audio | Sound)
        what = "audio" if sound else {Image: "images", Video: "video"}[type(media)]
        if self._projector is None:
            raise _refused(media, f"the daemon's model takes no {what}: load its projector with --mmproj")
        if not (self._projector.hears if sound else self._projector.sees):
            raise _refused(media, f"the daemon's projector takes no {what}: load a model that does, with its --mmproj")
        if isinstance(media, Video) and media.omni and not self._projector.hears:
            raise _refused(media, "the daemon's projector takes no audio: expected omni_mode to be false")
        return self._projector

    def _laid_out(self, media: Media, projector: Projector, digest: bytes) -> Iterator[list[Piece]]:
        match media:
            case Image():
                yield _few_slices(projector, images.decode(_decoded(media.data)), digest, media.max_slices)
            case Audio() | Sound():
                data = media.data if isinstance(media, Sound) else _decoded(media.data)
                yield projector.lay_out(_heard(data, media.sample_rate, projector.sample_rate), digest)
            case Video():
                film = videos.decode(_decoded(media.data), media.stack_frames)
                yield from self._film(film, media, projector, digest)

    def _film(self, film: videos.Film, media: Video, projector: Projector, digest: bytes) -> Iterator[list[Piece]]:
        """A video's pictures, with the sound after them: all of it at the end, or with ``omni`` the sound of each
        ``projector.window_s`` after its pictures."""
        samples, rate, begin = None, projector.sample_rate, 0.0
        if film.samples is not None and projector.hears:
            samples = sounds.resampled(film.samples, film.rate, rate)
        for i, frame in enumerate(film.frames):
            for j, picture in enumerate(frame.pictures):
                yield _few_slices(projector, picture, _part(digest, "picture", i, j), media.max_slices)
            until = film.frames[i + 1].time_s if i + 1 < len(film.frames) else math.inf
            if samples is not None and (until == math.inf or (media.omni and until - begin >= projector.window_s)):
                heard = samples[round(begin * rate) : None if until == math.inf else round(until * rate)]
                begin = until
                if len(heard):
                    yield projector.lay_out(np.ascontiguousarray(heard), _part(digest, "sound", i))


class _Room:
    """The tokens and the time that the media of one prompt may still take."""

    def __init__(self, max_tokens_each: int, wanted: Callable[[], bool]) -> None:
        self._field = ""
        """The field of the media being laid out."""
        self._max_tokens = max_tokens_each
        self._tokens = 0
        self._until = time.monotonic() + MAX_DECODING_S
        self._wanted = wanted

    def begin(self, field: str) -> None:
        """Begin with the media of ``field``. Raises ``RequestError`` where the media before this one took too long."""
        self._field = field
        if time.monotonic() > self._until:
            what = f"the media before it took more than {MAX_DECODING_S} s to decode: send fewer, or smaller ones"
            raise RequestError(Fault.BAD_REQUEST, field, f"{what}")

    def take(self, pieces: Sequence[Piece]) -> None:
        """Take room for ``pieces``. Raises ``RequestError`` where they don't fit, or nobody waits for the prompt any
        more."""
        if not self._wanted():
            raise RequestError(Fault.TIMED_OUT, self._field, "the request has been cancelled")
        self._tokens += sum(chunk.tokens for chunk in media_chunks(pieces))
        if self._tokens > self._max_tokens:
            problem = f"expected at most {self._max_tokens} tokens up to here, the context's length, got {self._tokens}"
            raise RequestError(Fault.CONTEXT_EXCEEDED, self._field, problem)


class _Cache:
    """An LRU cache of media that were laid out. Locked: it is used on the preparing thread and cleared on another."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, bytes], list[Piece]] = {}

    def get(self, key: tuple[str, bytes]) -> list[Piece] | None:
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found
            return found

    def put(self, key: tuple[str, bytes], pieces: list[Piece]) -> None:
        with self._lock:
            if _n_bytes(pieces) > self._max_bytes:
                return
            self._kept[key] = pieces
            # Counted again, because the size of a chunk changes when it is encoded.
            total = sum(map(_n_bytes, self._kept.values()))
            while total > self._max_bytes:
                total -= _n_bytes(self._kept.pop(next(iter(self._kept))))

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


def _n_bytes(pieces: Sequence[Piece]) -> int:
    return sum(chunk.n_bytes for chunk in media_chunks(pieces))


def _refused(media: Media, message: str) -> RequestError:
    return RequestError(Fault.BAD_REQUEST, media.field, f"{message}")


def _decoded(data: Base64) -> bytes:
    """Decode base64 in steps, because each call holds the GIL."""
    decoded = io.BytesIO()
    for start in range(0, len(data), BASE64_STEP):
        piece = data[start : start + BASE64_STEP]
        try:
            decoded.write(binascii.a2b_base64(piece, strict_mode=True))
        except ValueError as error:
            raise MediaError(f"expected base64: {error}") from None
        if piece[-1:] in ("=", b"=") and start + BASE64_STEP < len(data):
            raise MediaError("expected base64, got padding in the middle")
    return decoded.getvalue()


def _heard(data: bytes | memoryview, rate: int | None, wanted: int) -> Samples:
    if rate is not None:
        if len(data) // 4 > sounds.MAX_SECONDS * rate:
            raise MediaError(f"expected at most {sounds.MAX_SECONDS} s of sound, got {len(data) // 4 // rate} s")
        return sounds.resampled(sounds.samples_of(data), rate, wanted)
    return sounds.resampled(*sounds.decode_file(data), wanted)


def _few_slices(projector: Projector, picture: Picture, digest: bytes, limit: int | None) -> list[Piece]:
    """The picture laid out, made smaller until the projector cuts it into at most ``limit`` slices."""
    pieces = projector.lay_out(picture, digest)
    for _ in range(SHRINKINGS):
        # The first chunk is an overview of the whole picture.
        slices = len(media_chunks(pieces)) - 1
        if limit is None or slices <= limit:
            return pieces
        picture = images.shrunk(picture, 0.95 * (limit / slices) ** 0.5)
        pieces = projector.lay_out(picture, digest)
    raise MediaError(
        f"the daemon's projector can't divide images into at most {limit} slices: expected max_slice_nums to be absent"
    )


def _digest(media: Media) -> bytes:
    """The digest of the content and of all parameters that affect how it is laid out."""
    # A view's repr is its address.
    rest = ("sound", media.sample_rate) if isinstance(media, Sound) else replace(media, data="", field="")
    found = hashlib.sha256(repr(rest).encode())
    for start in range(0, len(media.data), BASE64_STEP):
        piece = media.data[start : start + BASE64_STEP]
        found.update(piece.encode() if isinstance(piece, str) else piece)
    return found.digest()


def _part(digest: bytes, kind: str, *numbers: int) -> bytes:
    return digest + repr((kind, *numbers)).encode()


def _marked(turns: Sequence[ChatTurn], mark: str) -> list[ChatTurn]:
    """The turns with ``mark`` at the place of each attachment."""
    marked = []
    for turn in turns:
        parts, at = [], 0
        for attachment in turn.attachments:
            parts += [turn.content[at : attachment.at], mark]
            at = attachment.at
        marked.append(replace(turn, content="".join(parts) + turn.content[at:], attachments=()))
    return marked


def _joined(pieces: Sequence[Piece]) -> Prompt:
    tokens: list[int] = []
    spans: list[Span] = []
    for piece in pieces:
        if isinstance(piece, MediaChunk):
            start = len(tokens)
            tokens += media_ids(piece.digest, piece.tokens)
            spans.append(Span(start, len(tokens), piece, piece.whole))
        else:
            tokens += piece
    return Prompt(tokens, spans, sum(chunk.sound_s for chunk in media_chunks(pieces)))
