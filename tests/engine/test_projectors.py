"""Tiny projectors of many kinds: a conversation with pictures or sounds has the same prompt and answer as through
llama-server, and media that are known are neither encoded nor computed again."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import media_files
import numpy as np
import PIL.Image
import pytest
from engine_world import EngineWorld
from llama_cpp import mtmd_cpp
from llama_server import LlamaServer
from tiny_models import BYTES, LETTERS, RECURRENT, SLIDING_WINDOW, SPECIAL, tiny_model
from tiny_projectors import KINDS, pair

from umaserve.core.errors import ModelError, RequestError
from umaserve.core.requests import ChatTurn, Generate
from umaserve.dialects.llama_server.props import props
from umaserve.dialects.openai.schemas import ChatRequest
from umaserve.dialects.openai.turns import turns
from umaserve.dialects.parameters import RequestLimits
from umaserve.engine.llama import backends
from umaserve.engine.media.projector import MediaChunk
from umaserve.kvcache.checkpoints import BEFORE_END

Message = dict[str, Any]
Make = Callable[..., EngineWorld]

N = 16
BOS, EOS = 1, 2
LIMITS = RequestLimits(max_prompt_bytes=4096, max_tokens=64)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, str]]:
    folder = tmp_path_factory.mktemp("projectors")
    made: dict[str, tuple[str, str]] = {}

    def of_kind(name: str) -> tuple[str, str]:
        if name not in made:
            made[name] = pair(folder, name)
        return made[name]

    return of_kind


@pytest.fixture
def world(pairs: Callable[[str], tuple[str, str]]) -> Iterator[Make]:
    made = []

    def make(name: str, chat_template: str | None = None, **settings: object) -> EngineWorld:
        model, mmproj = pairs(name)
        # Other types of cells and other attention round otherwise by where a sequence lies.
        made.append(EngineWorld(model, chat_template, mmproj=mmproj, kv_type="f32", flash_attn="off", **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def picture(width: int, height: int, seed: int) -> Message:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    data = base64.b64encode(media_files.image("PNG", PIL.Image.fromarray(noise))).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def sound(pitch: float, seconds: float = 1.0) -> Message:
    data = base64.b64encode(media_files.wav(media_files.sine(pitch, seconds))).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def text(words: str) -> Message:
    return {"type": "text", "text": words}


def conversation(name: str) -> list[Message]:
    """Of three turns, two of which have a picture or a sound."""
    first = picture(130, 100, 1) if KINDS[name].sees else sound(440)
    second = sound(880, 0.5) if KINDS[name].hears else picture(60, 90, 2)
    return [
        {"role": "user", "content": [first, text("What")]},
        {"role": "assistant", "content": "Noise"},
        {"role": "user", "content": [text("and"), text("now"), second, text("that"), text("one")]},
        {"role": "assistant", "content": "too"},
        {"role": "user", "content": "Which"},
    ]


def parsed(messages: Sequence[Message]) -> tuple[ChatTurn, ...]:
    return turns(ChatRequest({"messages": messages}), LIMITS)


def written(tokens: Sequence[int]) -> str:
    """The text of tokens, without the one that begins a prompt."""
    vocabulary = [*SPECIAL, *LETTERS, *BYTES]
    return "".join(vocabulary[token] for token in tokens if token != BOS).replace("▁", " ")


@pytest.mark.skipif("LLAMA_SERVER" not in os.environ, reason="LLAMA_SERVER names no llama-server to compare with")
@pytest.mark.parametrize("name", KINDS)
def test_prompts_and_answers_are_llama_servers_own(
    world: Make, pairs: Callable[[str], tuple[str, str]], tmp_path: Path, name: str
):
    messages = conversation(name)
    asked = [messages[:1], messages[:3], messages]
    model, mmproj = pairs(name)
    server = LlamaServer(os.environ["LLAMA_SERVER"], model, tmp_path / "log", "--mmproj", mmproj)
    try:
        theirs = [server.chat(one, N) for one in asked]
    finally:
        server.close()
    plain = world(name)
    for one, (prompt_tokens, tokens, logprobs) in zip(asked, theirs, strict=True):
        answer = plain.answer(parsed(one), N, logprobs=0)
        assert (answer.prompt_tokens, list(answer.tokens)) == (prompt_tokens, tokens)
        assert answer.logprobs == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_a_second_turn_computes_only_what_is_new_and_answers_as_one_that_computes_all(world: Make, name: str):
    plain, fresh = world(name), world(name)
    messages = conversation(name)
    first = plain.answer(parsed(messages[:1]), N)
    said = {"role": "assistant", "content": written(first.tokens)}
    following = parsed([messages[0], said, *messages[2:3]])
    encoded = plain.scheduler.metrics.chunks_encoded
    second = plain.answer(following, N, logprobs=0)
    # All but the answer's last token; where sequences can't be cut, what the prompt's checkpoint holds.
    uncut = KINDS[name].architecture in SLIDING_WINDOW | RECURRENT
    assert second.reused >= first.prompt_tokens + (-BEFORE_END if uncut else N - 1)
    alone = fresh.answer(following, N, logprobs=0)
    assert (list(second.tokens), alone.reused) == (list(alone.tokens), 0)
    assert second.logprobs == pytest.approx(alone.logprobs, abs=1e-3)
    # Those of the second turn's media, and none of the first's.
    assert 0 < plain.scheduler.metrics.chunks_encoded - encoded < fresh.scheduler.metrics.chunks_encoded


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.sees])
def test_a_crowd_with_too_few_cells_gets_what_each_gets_alone(world: Make, name: str):
    crowded, plain = world(name, n_ctx=512, n_batch=64, n_ubatch=64, speculation=False), world(name, speculation=False)
    prompts = [
        # One of them is larger than a batch, where its tokens needn't be decoded together.
        parsed([{"role": "user", "content": [text("ab"), picture(30 + 90 * seed, 100, seed), text("What" * seed)]}])
        for seed in (0, 1, 2, 3)
    ]
    for prompt in prompts * 3:
        crowded.answer(prompt, 4)  # So short an answer is expected again.
    together = [crowded.ask(prompt, 150) for prompt in prompts]
    crowded.finish()
    metrics = crowded.scheduler.metrics
    assert metrics.preemptions > 0
    # The token that was sampled last is computed in any case.
    assert metrics.recomputed_tokens <= metrics.preemptions
    assert [answer.tokens for answer in together] == [plain.answer(prompt, 150).tokens for prompt in prompts]


@pytest.mark.parametrize("name", KINDS)
def test_other_media_of_the_same_size_make_another_answer(world: Make, name: str):
    plain = world(name)
    one, other = [picture(130, 100, seed) for seed in (1, 2)] if KINDS[name].sees else [sound(440), sound(880)]
    answers = [
        plain.answer(parsed([{"role": "user", "content": [media, text("What")]}]), N, logprobs=0)
        for media in (one, other)
    ]
    assert answers[0].prompt_tokens == answers[1].prompt_tokens
    assert not np.allclose(answers[0].logprobs, answers[1].logprobs, atol=1e-2)


@pytest.mark.parametrize("name", ["qwen2.5vl", "qwen3vl", "qwen35"])
def test_m_rope_puts_an_image_where_llama_cpp_does(world: Make, name: str):
    prompt = parsed([{"role": "user", "content": [picture(130, 100, 1), text("What")]}])
    (span,) = world(name).engine.prepare(Generate("t", prompt)).spans
    assert isinstance(span.chunk, MediaChunk)
    assert span.chunk.places is not None
    found = (mtmd_cpp.mtmd_decoder_pos * span.chunk.tokens)()
    image = mtmd_cpp.mtmd_input_chunk_get_tokens_image(span.chunk.native)
    mtmd_cpp.mtmd_helper_image_get_decoder_pos(image, 7, found)
    assert [tuple(at) for at in span.chunk.places.at(7).T] == [(at.t, at.y, at.x, at.z) for at in found]
    assert span.chunk.positions == 8 < span.chunk.tokens == 8 * 6


def test_the_token_that_ends_a_prompt_comes_after_the_media(pairs: Callable[[str], tuple[str, str]], tmp_path: Path):
    model = tiny_model(tmp_path / "model.gguf", "llama", tokenizer__ggml__add_eos_token=True)
    plain = EngineWorld(model, mmproj=pairs("llava")[1])
    try:
        with_picture, without = (
            list(plain.engine.prepare(Generate("t", parsed([{"role": "user", "content": content}]))).tokens)
            for content in ([text("A"), picture(64, 64, 1), text("B")], [text("A"), text("B")])
        )
    finally:
        plain.close()
    assert without[-1] == EOS
    assert (with_picture.index(EOS), with_picture[-1]) == (len(with_picture) - 1, EOS)


# -- what a tool has found ---------------------------------------------------------------------------------------------

TOOLS = """{%- for m in messages -%}
{%- if m.role == "tool" -%}<tool|<tool_response>{{ m.content }}</tool_response>>
{%- else -%}<{{ m.role }}|{{ m.content }}
{%- for call in m.tool_calls or [] -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}>
{%- endif -%}
{%- endfor -%}<assistant|"""
"""A template that writes calls and their results, whose content is a string."""
PARTS = """{%- for m in messages -%}<{{ m.role }}|
{%- for part in m.content -%}{%- if part.type == "text" -%}{{ part.text }}{%- endif -%}{%- endfor -%}>
{%- endfor -%}<assistant|"""
"""A template that knows no calls, whose content is a list."""
RESPONSES = """{%- for m in messages -%}<{{ m.role }}|{{ m.content }}
{%- for call in m.tool_calls or [] -%}<tool_call>{{ call.function | tojson }}</tool_call>{%- endfor -%}
{%- for one in m.tool_responses or [] -%}<{{ one.name }}|{{ one.response }}>{%- endfor -%}>
{%- endfor -%}<assistant|"""
"""A template that writes results in the message of their calls, and by their JSON type."""


def looked(*found: Message | str) -> list[Message]:
    """A conversation in which a tool has ``found`` something."""
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": '{"at": "door"}'}}
    parts = [text(one) if isinstance(one, str) else one for one in found]
    return [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": parts},
    ]


@pytest.mark.skipif("LLAMA_SERVER" not in os.environ, reason="LLAMA_SERVER names no llama-server to compare with")
@pytest.mark.parametrize("found", [(picture(60, 60, 1),), ("Here", picture(130, 60, 1), "it is")])
def test_pictures_in_the_results_of_tools_are_read_as_by_llama_server(
    world: Make, pairs: Callable[[str], tuple[str, str]], tmp_path: Path, found: Sequence[Message | str]
):
    model, mmproj = pairs("qwen2.5vl")
    (tmp_path / "template").write_text(TOOLS)
    flags = ("--mmproj", mmproj, "--jinja", "--chat-template-file", str(tmp_path / "template"))
    server = LlamaServer(os.environ["LLAMA_SERVER"], model, tmp_path / "log", *flags)
    try:
        prompt_tokens, tokens, logprobs = server.chat(looked(*found), N)
    finally:
        server.close()
    answer = world("qwen2.5vl", TOOLS).answer(parsed(looked(*found)), N, logprobs=0)
    assert (answer.prompt_tokens, list(answer.tokens)) == (prompt_tokens, tokens)
    assert answer.logprobs == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize("template", [TOOLS, PARTS, RESPONSES, None], ids=["tools", "parts", "responses", "plain"])
def test_a_picture_in_the_result_of_a_tool_stands_where_the_template_writes_the_result(
    world: Make, monkeypatch: pytest.MonkeyPatch, template: str | None
):
    # As unlucky as a random mark can be: it could be read as a number in JSON.
    monkeypatch.setattr("secrets.token_hex", lambda n: "1e".ljust(2 * n, "0"))
    plain = world("llava", template)
    for found in ([picture(64, 64, 1)], ["Here", picture(64, 64, 1), picture(64, 64, 2), "it is"]):
        words = ["X" if isinstance(one, dict) else one for one in found]
        prepared, as_text = (
            plain.engine.prepare(Generate("t", parsed(looked(*one)), 4)) for one in (found, ["".join(words)])
        )
        shown, at = "", 0
        for span in prepared.spans:
            shown += written(prepared.tokens[at : span.start]) + "X"
            at = span.end
        assert shown + written(prepared.tokens[at:]) == written(as_text.tokens)
        assert len(prepared.spans) == words.count("X")


# -- what does not fit -------------------------------------------------------------------------------------------------


def test_a_projector_for_a_model_of_another_width_is_refused_with_both(
    pairs: Callable[[str], tuple[str, str]], caplog: pytest.LogCaptureFixture
):
    model, mmproj = pairs("minicpmv")[0], pairs("llava")[1]
    with pytest.raises(ModelError) as refused:
        EngineWorld(model, mmproj=mmproj)
    assert str(refused.value) == (
        f"mmproj {mmproj}: it makes embeddings of width 64, and the model minicpmv takes 128: give the projector that "
        "was made for this model, in its size"
    )
    # The operator reads one line.
    assert [
        record
        for record in caplog.records
        if record.name != backends.log.name and record.levelname in ("WARNING", "ERROR")
    ] == []


def test_a_projector_that_llama_cpp_does_not_know_is_refused_with_its_reason(
    pairs: Callable[[str], tuple[str, str]], tmp_path: Path
):
    model, mmproj = pairs("llava")
    unknown = tmp_path / "unknown.gguf"
    unknown.write_bytes(Path(mmproj).read_bytes().replace(b"\x03\0\0\0\0\0\0\0mlp", b"\x03\0\0\0\0\0\0\0new"))
    with pytest.raises(
        ModelError, match=r"^mmproj .*unknown.gguf: llama.cpp can't load it .*unknown projector type: new.*newer llama-"
    ) as refused:
        EngineWorld(model, mmproj=str(unknown))
    assert "\n" not in str(refused.value)


def test_a_model_in_the_place_of_a_projector_is_refused(pairs: Callable[[str], tuple[str, str]]):
    model, _mmproj = pairs("llava")
    with pytest.raises(ModelError, match=r"mmproj .*llava.gguf: it is not a projector, since it encodes neither"):
        EngineWorld(model, mmproj=model)


def test_clients_are_told_which_media_are_taken(world: Make):
    told = {name: json.loads(props(world(name).engine.info))["modalities"] for name in ("llava", "ultravox")}
    assert told == {"llava": {"vision": True, "audio": False}, "ultravox": {"vision": False, "audio": True}}


@pytest.mark.parametrize(
    ("name", "media", "error"),
    [
        (
            "llava",
            "sound",
            "content[0].input_audio.data: the daemon's projector takes no audio: load a model that does",
        ),
        ("ultravox", "picture", "content[0].image_url.url: the daemon's projector takes no images: load a model that"),
        (
            "",
            "sound",
            "content[0].input_audio.data: the daemon's model takes no audio: load its projector with --mmproj",
        ),
        ("", "picture", "content[0].image_url.url: the daemon's model takes no images: load its projector with --mmpr"),
    ],
)
def test_media_that_are_not_taken_are_refused_with_what_to_load(
    world: Make, pairs: Callable[[str], tuple[str, str]], name: str, media: str, error: str
):
    part = sound(440) if media == "sound" else picture(64, 64, 1)
    prompt = parsed([{"role": "user", "content": [part, text("What")]}])
    plain = world(name) if name else EngineWorld(pairs("llava")[0])
    end = plain.answer(prompt).end
    if not name:
        plain.close()
    assert isinstance(end, RequestError)
    assert end.message.startswith(f"messages[0].{error}")


def test_flash_attention_is_off_in_the_projector_too(
    pairs: Callable[[str], tuple[str, str]], monkeypatch: pytest.MonkeyPatch
):
    model, mmproj = pairs("llava")
    given = []
    load = mtmd_cpp.mtmd_init_from_file

    def loading(path: bytes, native: object, params: mtmd_cpp.mtmd_context_params) -> object:
        given.append(params.flash_attn_type)
        return load(path, native, params)

    monkeypatch.setattr(mtmd_cpp, "mtmd_init_from_file", loading)
    for setting in ("off", "auto"):
        EngineWorld(model, mmproj=mmproj, flash_attn=setting).close()
    assert given == [llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED, llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO]
