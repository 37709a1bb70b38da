"""Media through the real llama.cpp: laid out, encoded and decoded with tiny projectors, whose weights are random."""

from __future__ import annotations

import base64
import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import llama_cpp
import media_files
import numpy as np
import PIL.Image
import pytest
import standin_projectors as projectors
from llama_cpp import mtmd_cpp

from umaserve.core.errors import Fault, RequestError
from umaserve.core.queries import Detokenize
from umaserve.core.requests import Attachment, Audio, ChatTurn, Generate, Image, Media, Sound, Video
from umaserve.engine.engine import LlamaEngine, load
from umaserve.engine.media import reader as reading
from umaserve.engine.media.projector import MediaChunk
from umaserve.sessions.engine_api import Outcome, Prepared, Run, Tick, without_parts
from umaserve.sessions.kv_operations import Copy, Load, Release, Save
from umaserve.settings.daemon import Config

CONFIG = Config(n_ctx=2048, threads=1, parallel=4, host_cache_bytes=64 << 20, weights="as-is")


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], LlamaEngine]]:
    folder = tmp_path_factory.mktemp("projectors")
    made: dict[str, LlamaEngine] = {}

    def engine(kind: str) -> LlamaEngine:
        if kind not in made:
            projector = getattr(projectors, "mrope_vision" if kind == "mrope" else kind)(folder / f"{kind}.gguf")
            model = str(projectors.mrope_model(folder / "model.gguf")) if kind == "mrope" else ""
            made[kind] = load(replace(CONFIG, model=model, mmproj=str(projector)), lambda _fraction: True)
        return made[kind]

    yield engine
    for one in made.values():
        one.close()


def picture(width: int = 64, height: int = 64, seed: int = 0) -> str:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return base64.b64encode(media_files.image("PNG", PIL.Image.fromarray(noise))).decode()


def sound(seconds: float = 1.0, pitch: float = 440.0, rate: int = 16_000) -> str:
    samples = np.sin(np.arange(int(seconds * rate)) * pitch * 2 * np.pi / rate).astype("<f4")
    return base64.b64encode(samples.tobytes()).decode()


def turn(*parts: str | Media) -> tuple[ChatTurn, ...]:
    text, attachments = "", []
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            attachments.append(Attachment(len(text), part))
    return (ChatTurn("user", text, attachments=tuple(attachments)),)


def prepared(engine: LlamaEngine, *parts: str | Media, tenant: str = "", **fields: object) -> Prepared:
    return engine.prepare(Generate("t", turn(*parts), **{"max_tokens": 4, **fields}), tenant)


def encode(engine: LlamaEngine, request: Prepared) -> None:
    for span in request.spans:
        engine.encode(span.chunk, lambda: None, lambda: True)


def runs(request: Prepared, slot: int, start: int = 0, most: int = 10**6) -> Iterator[Run]:
    """All of a prompt, as the scheduler parts it."""
    cuts = sorted({0, len(request.tokens), *(at for span in request.spans for at in (span.start, span.end))})
    for begin, end in itertools.pairwise(cuts):
        span = next((span for span in request.spans if span.start == begin), None)
        step = end - begin if span is not None and span.whole else most
        for at in range(begin, end, step):
            if at >= start:
                until = min(at + step, end)
                last = until == len(request.tokens)
                sampler, logprobs = (request.sampler, request.logprobs) if last else (None, None)
                yield Run(slot, at, request.tokens[at:until], sampler, logprobs, span=span)


def answer(engine: LlamaEngine, request: Prepared, slot: int = 0, start: int = 0, most: int = 10**6) -> list[int]:
    """Greedy tokens, each prompt's run in a tick of its own."""
    for run in runs(request, slot, start, most):
        result = engine.run(Tick((), [run]))
        assert result.outcome is Outcome.DONE
    tokens = [*result.tokens[0]]
    while len(tokens) < request.max_tokens:
        at = len(request.tokens) + len(tokens) - 1
        result = engine.run(Tick((), [Run(slot, at, tokens[-1:], request.sampler)]))
        tokens += result.tokens[0]
    return tokens


def alone(engine: LlamaEngine, request: Prepared, most: int = 10**6) -> list[int]:
    engine.run(Tick([Release(0)], ()))
    return answer(engine, request, most=most)


KINDS: Sequence[tuple[str, Media]] = [
    ("vision", Image(picture(130, 130), "image")),
    ("audio", Audio(sound(), "audio", 16_000)),
    ("whole", Image(picture(), "image")),
    ("mrope", Image(picture(96, 64), "image")),
]
kinds = pytest.mark.parametrize(("kind", "media"), KINDS, ids=[kind for kind, _ in KINDS])


@pytest.mark.parametrize(("kind", "media"), KINDS[1:], ids=[kind for kind, _ in KINDS[1:]])
def test_the_logits_are_those_of_llama_cpps_own_way(
    engines: Callable[[str], LlamaEngine], kind: str, media: Media
) -> None:
    """Without the slices' projector: the default model lacks its tokens, on which that way ends the process."""
    engine = engines(kind)
    request = prepared(engine, "Look: ", media, " What is it?", max_tokens=1, logprobs=5)
    encode(engine, request)
    engine.run(Tick([Release(0), Release(1)], ()))
    *_, result = [engine.run(Tick((), [run])) for run in runs(request, 0)]
    (ours,) = result.logprobs[0]
    logits = reference(engine, request)
    best = np.argsort(logits)[::-1][:5]
    assert [one.token_id for one in ours.top] == list(best)
    theirs = logits[best] - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
    assert [one.logprob for one in ours.top] == pytest.approx(list(theirs), abs=2e-2)


def reference(engine: LlamaEngine, request: Prepared) -> np.ndarray:
    """The logits behind the prompt, by mtmd's own helpers, in sequence 1."""
    model, projector = engine._model, engine._projector
    past = ctypes.c_int32()
    at, position = 0, 0
    for span in (*request.spans, None):
        text = request.tokens[at : len(request.tokens) if span is None else span.start]
        batch = llama_cpp.llama_batch_init(len(text), 0, 1)
        batch.n_tokens = len(text)
        for i, token in enumerate(text):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = (
                token,
                position + i,
                1,
                i == len(text) - 1,
            )
            batch.seq_id[i][0] = 1
        assert llama_cpp.llama_decode(model.context, batch) == 0
        llama_cpp.llama_batch_free(batch)
        position += len(text)
        if span is not None:
            native = span.chunk.embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            copy = _natives[span.chunk.digest]
            code = mtmd_cpp.mtmd_helper_decode_image_chunk(
                projector._native, model.context, copy, native, position, 1, 512, ctypes.byref(past),
                mtmd_cpp.mtmd_helper_post_decode_callback(), None,
            )  # fmt: skip
            assert code == 0
            position, at = past.value, span.end
    logits = llama_cpp.llama_get_logits_ith(model.context, -1)
    return np.ctypeslib.as_array(logits, (model.n_vocab,)).copy()


_natives: dict[int, object] = {}


@pytest.fixture(autouse=True)
def keep_natives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk lets go of what mtmd made of it when it is encoded: the reference needs a copy."""
    keep = MediaChunk.keep

    def keeping(chunk: MediaChunk, embeddings: np.ndarray) -> None:
        _natives[chunk.digest] = mtmd_cpp.mtmd_input_chunk_copy(chunk.native)
        keep(chunk, embeddings)

    monkeypatch.setattr(MediaChunk, "keep", keeping)


@kinds
def test_the_answer_is_the_same_in_however_small_parts(
    engines: Callable[[str], LlamaEngine], kind: str, media: Media
) -> None:
    engine = engines(kind)
    request = prepared(engine, "Look: ", media, " What is it?")
    encode(engine, request)
    first = alone(engine, request)
    again = prepared(engine, "Look: ", media, " What is it?")
    assert [span.chunk for span in again.spans] == [span.chunk for span in request.spans]
    assert alone(engine, again, most=5) == first


@kinds
def test_what_is_copied_saved_and_brought_back_goes_on_as_it_was(
    engines: Callable[[str], LlamaEngine], kind: str, media: Media
) -> None:
    engine = engines(kind)
    request = prepared(engine, "Look: ", media, " What is it?")
    encode(engine, request)
    expected = alone(engine, request)
    behind = request.spans[-1].end + 2
    engine.run(Tick([Release(0), Release(1), Release(2), Release(3)], ()))
    for run in runs(request, 1, most=1):
        if run.start < behind:
            assert engine.run(Tick((), [run])).outcome is Outcome.DONE
    fixed, each, *_ = engine.capacity.saved_bytes
    size = fixed + each * behind
    kv_operations = [Copy(1, 2, behind), Save(1, 0, size), Release(1), Load(0, size, 3), Release(1)]
    assert engine.run(Tick(kv_operations, ())).outcome is Outcome.DONE
    for slot in (2, 3):
        assert answer(engine, replace(request, sampler=sampler(engine)), slot, behind, 1) == expected
    engine.run(Tick([Release(2), Release(3)], ()))


def sampler(engine: LlamaEngine) -> object:
    return engine.prepare(Generate("t", "a")).sampler


def test_other_content_is_another_prompt_and_the_same_is_found_again(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("both")
    cat, dog = (Image(picture(seed=seed), "image") for seed in (1, 2))
    first, same, other = (prepared(engine, "Look: ", one) for one in (cat, replace(cat, field="elsewhere"), dog))
    assert first.tokens == same.tokens
    assert first.spans[0].chunk is same.spans[0].chunk
    assert prepared(engine, "Look: ", cat, tenant="another").spans[0].chunk is not first.spans[0].chunk
    assert not set(first.tokens[first.spans[0].start : first.spans[0].end]) & set(other.tokens)
    span = first.spans[0]
    assert [without_parts(first.tokens, n) for n in (span.start, span.start + 1, span.end - 1, span.end)] == [
        span.start, span.start, span.start, span.end,
    ]  # fmt: skip


def test_a_large_image_is_cut_into_slices_and_max_slices_makes_them_fewer(
    engines: Callable[[str], LlamaEngine],
) -> None:
    engine = engines("vision")
    counts = {
        most: len(prepared(engine, Image(picture(256, 256), "image", most), "?").spans) for most in (None, 9, 4, 1)
    }
    assert counts[None] == 17
    assert all(count <= most + 1 for most, count in counts.items() if most is not None)


def shown(engine: LlamaEngine, request: Prepared) -> str:
    """The prompt's text, with a picture for each image."""
    at, text = 0, ""
    for start, end in [*((span.start, span.end) for span in request.spans), (len(request.tokens), 0)]:
        text += engine.answer(Detokenize(tuple(request.tokens[at:start]))).text + "🖼" * bool(end)
        at = end
    return text


def numbered(numbers: bool | None, *parts: str | None) -> list[str | Media]:
    """A content in which an image stands for ``None``."""
    seeds = itertools.count()
    return [Image(picture(seed=next(seeds)), "image", numbered=numbers) if part is None else part for part in parts]


@pytest.mark.parametrize(
    ("numbers", "parts", "expected"),
    [
        (True, ["Look: ", None, None, "\nOr:\n", None, "?"], "Look: \nImage 1: 🖼Image 2: 🖼\nOr:\nImage 3: 🖼?"),
        (True, [None, "?"], "🖼?"),
        (False, [None, " and ", None, "?"], "🖼 and 🖼?"),
        (None, [None, " and ", None, "?"], "🖼 and 🖼?"),
    ],
)
def test_several_images_are_told_by_numbers(
    engines: Callable[[str], LlamaEngine], numbers: bool | None, parts: list[str | None], expected: str
) -> None:
    engine = engines("whole")
    text = shown(engine, prepared(engine, *numbered(numbers, *parts)))
    assert expected in text.replace("<start_of_image>🖼<end_of_image>", "🖼")


def test_sounds_between_images_have_no_number(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("both")
    first, second = numbered(True, None, None)
    text = shown(engine, prepared(engine, first, Audio(sound(), "audio", 16_000), second, "?"))
    assert [text.count(f"Image {n}: ") for n in (1, 2, 3)] == [1, 1, 0]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (True, "<image_id>0</image_id>{}<image_id>1</image_id>{}"),
        (None, "<image_id>0</image_id>{}<image_id>1</image_id>{}"),
        (False, "{}{}"),
    ],
)
def test_a_model_that_knows_image_ids_is_told_by_those(
    tmp_path_factory: pytest.TempPathFactory, numbers: bool | None, expected: str
) -> None:
    folder = tmp_path_factory.mktemp("ids")
    model = projectors.mrope_model(folder / "model.gguf", "<image_id>", "</image_id>")
    projector = projectors.mrope_vision(folder / "projector.gguf")
    engine = load(replace(CONFIG, model=str(model), mmproj=str(projector)), lambda _: True)
    try:
        request = prepared(engine, *numbered(numbers, None, None, "?"))
        assert expected.format(*["<|vision_start|>🖼<|vision_end|>"] * 2) in shown(engine, request)
    finally:
        engine.close()


def test_slices_that_cannot_be_fewer_are_an_error(tmp_path: Path) -> None:
    engine = load(replace(CONFIG, mmproj=str(projectors.vision(tmp_path / "p", 256))), lambda _: True)
    try:
        with pytest.raises(RequestError, match="image: the daemon's projector can't divide images") as refused:
            prepared(engine, Image(picture(256, 256), "image", 4), "?")
        assert refused.value.fault is Fault.BAD_REQUEST
    finally:
        engine.close()


def test_a_film_is_its_pictures_and_its_sound(
    engines: Callable[[str], LlamaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines("both")
    film = base64.b64encode(media_files.film([media_files.RED] * 15, sound=media_files.sine(seconds=3))).decode()
    plain = prepared(engine, "See: ", Video(film, "film"), "?")
    omni = prepared(engine, "See: ", Video(film, "film", omni=True), "?")

    def kinds_of(request: Prepared) -> list[int]:
        return [span.end - span.start for span in request.spans]

    pictures = kinds_of(plain)[:-1]
    assert kinds_of(plain)[-1] == 15
    # What this projector hears in one go is longer than the film.
    assert kinds_of(omni) == kinds_of(plain)
    monkeypatch.setattr(engine._projector, "window_s", 2)
    engine.shed()
    omni = prepared(engine, "See: ", Video(film, "film", omni=True), "?")
    a_second = pictures[: len(pictures) // 3]
    assert kinds_of(omni) == [*a_second * 2, 15, *a_second, 15]
    silent = base64.b64encode(media_files.film([media_files.RED] * 10)).decode()
    assert 15 not in kinds_of(prepared(engine, Video(silent, "film"), "?"))


@pytest.mark.parametrize(
    ("kind", "media", "message"),
    [
        ("audio", Image(picture(), "m[0]"), "m[0]: the daemon's projector takes no images"),
        ("vision", Audio(sound(), "m[0]", 16_000), "m[0]: the daemon's projector takes no audio"),
        ("vision", Video("AAAA", "m[0]", omni=True), "m[0]: the daemon's projector takes no audio: expected omni_mode"),
        ("vision", Image("no base64", "m[0]"), "m[0]: expected base64"),
        ("vision", Image("AAAA", "m[0]"), "m[0]: expected an image"),
        ("vision", Image(picture(202, 2), "m[0]"), "m[0]: expected an image whose longer edge is at most 100 times"),
        ("vision", Sound(memoryview(b""), "file"), "file: the daemon's projector takes no audio"),
        ("audio", Sound(memoryview(b"RIFF"), "file"), "file: expected"),
        ("audio", Sound(memoryview(b"RIF"), "file", 16_000), "file: expected float32 samples"),
        ("audio", Audio("AAAA", "m[0]", None), "m[0]: expected"),
        ("audio", Audio("AAA=", "m[0]", 16_000), "m[0]: expected"),
        ("audio", Audio("AA==AAAA", "m[0]", 16_000), "m[0]: expected base64"),
        ("audio", Audio("A" * 2**20 + "AA==" + "A" * 2**20, "m[0]", 16_000), "m[0]: expected base64"),
        ("audio", Audio("A" * (2**20 - 2) + "==AAAA", "m[0]", 16_000), "m[0]: expected base64"),
    ],
)
def test_what_can_not_be_used_is_refused_by_name(
    engines: Callable[[str], LlamaEngine], kind: str, media: Media, message: str
) -> None:
    with pytest.raises(RequestError) as refused:
        prepared(engines(kind), "a", media, "b")
    assert refused.value.message.startswith(message)
    assert refused.value.fault is Fault.BAD_REQUEST


def test_a_sound_is_heard_the_same_with_and_without_base64(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("audio")
    samples = base64.b64decode(sound(pitch=330))
    whole = memoryview(b"before it" + samples + b"behind it")[9:-9]
    file = media_files.wav(np.frombuffer(samples, "<f4"))
    # Not from the cache, to compare what was encoded.
    media = [
        Audio(base64.b64encode(samples).decode(), "audio", 16_000),
        Sound(whole, "file", 16_000),
        Audio(base64.b64encode(file).decode(), "audio"),
        Sound(memoryview(file), "file"),
    ]
    asked = [prepared(engine, "Hear: ", one, "What is it?", cache_prompt=False) for one in media]
    for one in asked:
        encode(engine, one)
    base64s, plain, file64, plain_file = ([span.chunk.embeddings for span in one.spans] for one in asked)
    np.testing.assert_array_equal(base64s, plain)
    np.testing.assert_array_equal(file64, plain_file)


def test_a_sound_that_came_as_bytes_is_found_again(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("audio")
    one, other = (np.frombuffer(base64.b64decode(sound(pitch=pitch)), "<f4").tobytes() for pitch in (350, 351))
    first, again, different = (
        prepared(engine, Sound(memoryview(bytes(data)), "file", 16_000), "?") for data in (one, one, other)
    )
    assert first.tokens == again.tokens
    assert first.spans[0].chunk is again.spans[0].chunk
    assert first.tokens != different.tokens
    slower = prepared(engine, Sound(memoryview(one), "file", 8_000), "?")
    assert first.tokens != slower.tokens


def test_sound_is_bounded_in_its_length_before_it_is_resampled(engines: Callable[[str], LlamaEngine]) -> None:
    hour = base64.b64encode(bytes(4 * 1000 * 3600)).decode()
    with pytest.raises(RequestError, match=r"m\[0\]: expected at most 1800 s of sound, got 3600 s"):
        prepared(engines("audio"), Audio(hour, "m[0]", 1000), "?")


def test_media_beyond_the_context_are_refused_before_all_are_laid_out(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("vision")
    film = base64.b64encode(media_files.film([media_files.RED] * 64, 1, size=(640, 640))).decode()
    with pytest.raises(
        RequestError, match=r"film: expected at most \d+ tokens up to here, the context's length, got \d+"
    ) as refused:
        prepared(engine, Video(film, "film"), "?")
    assert refused.value.fault is Fault.CONTEXT_EXCEEDED
    assert int(refused.value.message.split()[-1]) < 3 * engine.capacity.sequence_tokens


def test_nothing_more_is_laid_out_for_who_has_left(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("vision")
    asked: list[int] = []

    def wanted() -> bool:
        asked.append(1)
        return len(asked) < 3

    pictures = [Image(picture(seed=100 + n), f"image {n}") for n in range(8)]
    with pytest.raises(RequestError, match="image 2: the request has been cancelled"):
        engine.prepare(Generate("t", turn(*pictures)), "", wanted)


def test_what_lies_in_memory_is_read_like_a_string(
    engines: Callable[[str], LlamaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, data = engines("vision"), picture(seed=9)
    as_string, in_memory = (prepared(engine, Image(one, "i"), "?") for one in (data, memoryview(data.encode())))
    assert in_memory.tokens == as_string.tokens
    monkeypatch.setattr(reading, "BASE64_STEP", 4)
    for broken in ("QQ==QUJD", memoryview(b"QQ==QUJD")):
        with pytest.raises(RequestError, match="i: expected base64, got padding in the middle"):
            prepared(engine, Image(broken, "i"), "?")


def test_a_request_whose_media_take_too_long_is_given_up(
    engines: Callable[[str], LlamaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The time is over from the beginning.
    monkeypatch.setattr(reading, "MAX_DECODING_S", -1)
    with pytest.raises(
        RequestError, match="image 0: the media before it took more than -1 s to decode: send fewer"
    ) as late:
        prepared(engines("vision"), Image(picture(), "image 0"), "?")
    assert late.value.fault is Fault.BAD_REQUEST


def test_nothing_is_kept_of_a_prompt_that_must_not_be(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("vision")
    once, again = (prepared(engine, Image(picture(seed=7), "i"), "?", cache_prompt=False) for _ in range(2))
    assert once.spans[0].chunk is not again.spans[0].chunk


def test_what_is_larger_than_the_cache_drives_out_nothing(tmp_path: Path) -> None:
    engine = load(
        replace(CONFIG, mmproj=str(projectors.vision(tmp_path / "p")), media_cache_bytes=8 << 20), lambda _: True
    )
    try:
        small = prepared(engine, Image(picture(seed=1), "i"), "?")
        prepared(engine, Image(picture(256, 256), "i"), "?")
        assert prepared(engine, Image(picture(seed=1), "i"), "?").spans[0].chunk is small.spans[0].chunk
    finally:
        engine.close()


def test_a_daemon_without_a_projector_says_what_to_load() -> None:
    engine = load(CONFIG, lambda _fraction: True)
    try:
        for media in (Image("", "m[0]"), Audio("", "m[0]"), Video("", "m[0]")):
            with pytest.raises(RequestError, match=r"m\[0\]: the daemon's model takes no \w+: load its projector"):
                prepared(engine, media, "a")
    finally:
        engine.close()


def test_a_very_short_sound_and_a_very_small_image_are_taken(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("both")
    one = base64.b64encode(np.zeros(1, "<f4").tobytes()).decode()
    request = prepared(engine, "a", Audio(one, "audio", 16_000), "b", Image(picture(1, 1), "image"), "c")
    encode(engine, request)
    assert len(alone(engine, request)) == 4


def test_encoding_pauses_and_is_given_up_when_nobody_wants_it(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("audio")
    (span,) = prepared(engine, Audio(sound(pitch=300), "audio", 16_000), "?").spans
    pauses: list[int] = []
    engine.encode(span.chunk, lambda: pauses.append(1), lambda: not pauses)
    assert pauses
    assert not span.chunk.encoded
    engine.encode(span.chunk, lambda: None, lambda: True)
    assert span.chunk.encoded


def test_a_stream_goes_on_in_the_pauses_of_encoding(engines: Callable[[str], LlamaEngine]) -> None:
    engine = engines("audio")
    (span,) = prepared(engine, Audio(sound(pitch=200), "audio", 16_000), "?").spans
    request = engine.prepare(Generate("t", "Once upon a time", max_tokens=8))
    expected = alone(engine, request)
    engine.run(Tick([Release(0)], ()))
    tokens = [*engine.run(Tick((), [Run(0, 0, request.tokens, sampler(engine))])).tokens[0]]

    def tick() -> None:
        run = Run(0, len(request.tokens) + len(tokens) - 1, tokens[-1:], request.sampler)
        tokens.extend(engine.run(Tick((), [run])).tokens[0])

    engine.encode(span.chunk, tick, lambda: True)
    assert len(tokens) > 1
    assert tokens[: len(expected)] == expected[: len(tokens)]
    with_pauses = span.chunk.embeddings
    engine.shed()
    (span,) = prepared(engine, Audio(sound(pitch=200), "audio", 16_000), "?").spans
    engine.encode(span.chunk, lambda: None, lambda: True)
    assert np.array_equal(with_pauses, span.chunk.embeddings)
