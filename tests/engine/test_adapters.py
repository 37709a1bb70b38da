"""Adapters change what the real model computes exactly while they are set; files that are none are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest

from umaserve.core.errors import Fault, ModelError, RequestError
from umaserve.engine.llama.adapters import LoraAdapters
from umaserve.engine.llama.batch import Batch
from umaserve.engine.llama.model import Model, find
from umaserve.sessions.engine_api import Run
from umaserve.settings.daemon import Config

WIDTH, RANK, VOCABULARY = 576, 4, 49152
TOKENS = [504, 338, 260, 253, 1038]
QUERY = "blk.3.attn_q.weight"

Shapes = Mapping[str, tuple[int, ...]]


def pair(target: str, inputs: int = WIDTH, outputs: int = WIDTH) -> Shapes:
    return {f"{target}.lora_a": (RANK, inputs), f"{target}.lora_b": (outputs, RANK)}


def write(
    path: Path,
    seed: int = 1,
    shapes: Shapes | None = None,
    *,
    architecture: str = "llama",
    kind: str = "adapter",
    adapter: Callable[[gguf.GGUFWriter], None] = lambda writer: writer.add_string("adapter.type", "lora"),
    alpha: Callable[[gguf.GGUFWriter], None] = lambda writer: writer.add_float32("adapter.lora.alpha", 8.0),
    numbers: type = np.float32,
) -> str:
    """An adapter file of random matrices; returns its path."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(kind)
    adapter(writer)
    alpha(writer)
    random = np.random.default_rng(seed)
    shapes = shapes or {**pair(QUERY), **pair("blk.20.ffn_up.weight", outputs=1536)}
    for name, shape in shapes.items():
        writer.add_tensor(name, (random.standard_normal(shape) * 0.2).astype(numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    made = Model(find(""), Config(n_ctx=256, parallel=1, threads=1), lambda _fraction: True)
    yield made
    made.free()


@pytest.fixture(scope="module")
def adapters(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoraAdapters]:
    folder = tmp_path_factory.mktemp("adapters")
    files = [write(folder / "pirate.gguf", 1), f"Formal={write(folder / 'other.gguf', 2)}"]
    made = LoraAdapters(model, files)
    yield made
    made.apply(model.context, ())
    made.free()


@pytest.fixture
def logits(model: Model, adapters: LoraAdapters) -> Callable[..., np.ndarray]:
    """What the model makes of ``TOKENS`` with the adapters wanted."""

    def computed(*wanted: tuple[str, float]) -> np.ndarray:
        adapters.apply(model.context, adapters.resolve(wanted))
        batch = Batch(len(TOKENS))
        batch.fill([Run(0, 0, TOKENS, object())])
        assert llama_cpp.llama_decode(model.context, batch.native) == 0
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(model.context), 0, -1, -1)
        native = llama_cpp.llama_get_logits_ith(model.context, -1)
        return np.ctypeslib.as_array(native, (model.n_vocab,)).copy()

    return computed


def test_each_set_of_adapters_gives_other_logits_and_none_gives_the_models_own(logits: Callable[..., np.ndarray]):
    base = logits()
    changed = [
        logits(("pirate", 1.0)),
        logits(("pirate", 0.5)),
        logits(("pirate", -1.0)),
        logits(("Formal", 1.0)),
        logits(("Formal", 1.0), ("pirate", 1.0)),
    ]
    for index, one in enumerate(changed):
        assert np.isfinite(one).all()
        for other in (base, *changed[:index]):
            assert np.abs(one - other).max() > 0.1
        np.testing.assert_array_equal(logits(), base)
    np.testing.assert_array_equal(logits(("pirate", 0.0), ("Formal", 0.0)), base)


def test_a_set_of_adapters_computes_the_same_whenever_it_is_set(logits: Callable[..., np.ndarray]):
    both = (("pirate", 0.5), ("Formal", 2.0))
    first = logits(*both)
    logits(("pirate", 1.0))
    np.testing.assert_array_equal(logits(*both), first)
    np.testing.assert_array_equal(logits(*reversed(both)), first)


def test_llama_cpp_is_only_told_of_changes(model: Model, adapters: LoraAdapters, monkeypatch: pytest.MonkeyPatch):
    counts = []
    tell = llama_cpp.llama_set_adapters_lora
    monkeypatch.setattr(llama_cpp, "llama_set_adapters_lora", lambda *args: (counts.append(args[2]), tell(*args))[1])
    adapters.apply(model.context, ())
    counts.clear()
    for wanted in ((), (), None, None, (("pirate", 1.0),), (("Formal", 0.0), ("pirate", 1.0)), ()):
        adapters.apply(model.context, adapters.resolve(wanted))
    assert counts == [2, 1, 0]


def test_a_request_gets_what_it_names_and_all_where_it_names_none(adapters: LoraAdapters):
    assert adapters.names == ("pirate", "Formal")
    assert adapters.resolve(None) == (("Formal", 1.0), ("pirate", 1.0))
    assert adapters.resolve(()) == ()
    assert adapters.resolve((("pirate", 0.5), ("Formal", -2.0))) == (("Formal", -2.0), ("pirate", 0.5))
    assert adapters.resolve((("pirate", 0.0), ("Formal", 1.0))) == (("Formal", 1.0),)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_an_unknown_name_is_refused_with_those_there_are(adapters: LoraAdapters, scale: float):
    with pytest.raises(RequestError) as refused:
        adapters.resolve((("pirate", 1.0), ("pi\nräte" + "!" * 1000, scale)))
    assert refused.value.fault is Fault.BAD_REQUEST
    assert refused.value.message.startswith('lora: expected one of "Formal", "pirate", got "pi\\nr\\u00e4te!')
    assert len(refused.value.message) < 160


def test_without_adapters_none_can_be_named(model: Model):
    none = LoraAdapters(model, ())
    assert (none.names, none.resolve(None)) == ((), ())
    with pytest.raises(RequestError, match=r"lora: expected to be absent or empty, .* got \"pirate\""):
        none.resolve((("pirate", 1.0),))


# -- files -----------------------------------------------------------------------------------------------------------


def alora(writer: gguf.GGUFWriter) -> None:
    writer.add_string("adapter.type", "lora")
    writer.add_key_value("adapter.alora.invocation_tokens", [1, 2], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT32)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ({"kind": "model"}, "not a LoRA adapter; convert"),
        ({"adapter": lambda writer: None}, "not a LoRA adapter; convert"),
        ({"adapter": lambda writer: writer.add_uint32("adapter.type", 7)}, "not a LoRA adapter; convert"),
        ({"adapter": lambda writer: writer.add_string("adapter.type", "control")}, "not a LoRA adapter; convert"),
        ({"adapter": alora}, "invocation sequence"),
        ({"architecture": "qwen2"}, "made for the architecture \"qwen2\", the model's is 'llama'"),
        (
            {"alpha": lambda writer: writer.add_uint32("adapter.lora.alpha", 8)},
            "adapter.lora.alpha is not a 32-bit float",
        ),
        ({"shapes": pair("blk.99.attn_q.weight")}, "doesn't fit"),
        ({"shapes": pair(QUERY, inputs=512)}, "doesn't fit"),
        ({"shapes": {QUERY: (RANK, WIDTH)}}, "doesn't fit"),
        ({"shapes": {f"{QUERY}.lora_a": (RANK, WIDTH)}}, "doesn't fit"),
        ({"shapes": pair("token_embd.weight", inputs=VOCABULARY)}, "token embeddings"),
        ({"shapes": {f"{QUERY}.lora_a": (2, RANK, WIDTH)}}, r"has the shape \[576, 4, 2, 1\], expected \[n, n, 1, 1\]"),
        ({"shapes": {f"{QUERY}.lora_a": (0, WIDTH)}}, r"has the shape \[576, 0, 1, 1\]"),
        ({"numbers": np.int32}, "has type 26, expected floats"),
    ],
)
def test_a_file_that_is_no_adapter_of_the_model_is_refused(
    model: Model, tmp_path: Path, damage: dict[str, object], expected: str
):
    path = write(tmp_path / "bad.gguf", **damage)
    with pytest.raises(ModelError, match=f"^lora file '{path}': .*{expected}"):
        LoraAdapters(model, (path,))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b"PK\3\4" + bytes(64), "not a GGUF file"),
        (b"GGUF\3\0\0\0", "truncated"),
    ],
)
def test_a_file_that_is_missing_or_no_gguf_is_refused(
    model: Model, tmp_path: Path, content: bytes | None, expected: str
):
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=f"^lora 'mine': .*'{path}': .*{expected}"):
        LoraAdapters(model, (f"mine={path}",))


def test_two_adapters_of_one_name_are_refused(model: Model, tmp_path: Path):
    path = write(tmp_path / "one.gguf")
    with pytest.raises(ModelError, match=f"^lora 'one={path}': .* has the name 'one' too: .* NAME={path}$"):
        LoraAdapters(model, (path, f"one={path}"))


@pytest.mark.parametrize("file", ["=a.gguf", "a=", "="])
def test_a_name_or_a_file_that_is_empty_is_refused(model: Model, file: str):
    with pytest.raises(ModelError, match=f"^lora '{file}': expected FILE or NAME=FILE"):
        LoraAdapters(model, (file,))


def test_matrices_of_16_bits_and_quantized_ones_load(model: Model, tmp_path: Path):
    half = write(tmp_path / "half.gguf", shapes=pair(QUERY), numbers=np.float16)
    writer = gguf.GGUFWriter(tmp_path / "whole.gguf", "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    for name, shape in ((f"{QUERY}.lora_a", (32, WIDTH)), (f"{QUERY}.lora_b", (WIDTH, 32))):
        blocks = gguf.quantize(np.ones(shape, np.float32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    loaded = LoraAdapters(model, (half, str(tmp_path / "whole.gguf")))
    assert loaded.names == ("half", "whole")
    loaded.free()
