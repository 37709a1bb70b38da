"""LoRA adapters: loaded with the model, chosen by name, and set on its context before a decode.

Their files are checked before llama.cpp loads them: it aborts the process on metadata of an unexpected type and, in the
first decode, on matrices that it can't multiply.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp._ggml import libggml

from umaserve.core.errors import Fault, ModelError, RequestError
from umaserve.engine.files import gguf
from umaserve.engine.llama.model import Model
from umaserve.sessions.engine_api import Adapters

_MAX_SHOWN = 64
_MAX_NAMES_SHOWN = 16

_STRING, _FLOAT32 = 8, 6
_BF16 = 30
_DIMS = 4


class LoraAdapters:
    """The adapters in ``files``, each "FILE" or "NAME=FILE"; without a name, the file's stem is the name.

    Made on the compute thread. Raises ``ModelError`` for a duplicate name and for a file that is not an adapter of this
    model; adapters loaded before the error are freed with the model.
    """

    def __init__(self, model: Model, files: Sequence[str]) -> None:
        self._natives: dict[str, Any] = {}
        self.files: dict[str, str] = {}
        """Paths of the files, by the adapters' names."""
        self._applied: Adapters = ()
        for file in files:
            name, path = _name_and_path(file)
            if name in self._natives:
                raise ModelError(
                    f"lora {file!r}: an earlier adapter has the name {name!r} too: give it another one with NAME={path}"
                )
            try:
                gguf.check(path)
            except ModelError as error:
                raise ModelError(f"lora {name!r}: {error}") from None
            _check(model, path)
            self._natives[name] = _load(model, path)
            self.files[name] = path

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the adapters, in the order of the files."""
        return tuple(self._natives)

    def resolve(self, wanted: Sequence[tuple[str, float]] | None) -> Adapters:
        """The adapters and scales that a request is computed with: ``wanted`` without those of scale 0, sorted.

        ``None`` means all adapters at scale 1. From any thread. Raises ``RequestError`` for an unknown name.
        """
        if wanted is None:
            return tuple((name, 1.0) for name in sorted(self.names))
        for name, _ in wanted:
            if name not in self._natives:
                raise RequestError(Fault.BAD_REQUEST, "lora", f"expected {self._expected()}, got {_shown(name)}")
        return tuple(sorted((name, scale) for name, scale in dict(wanted).items() if scale))

    def apply(self, context: Any, adapters: Adapters) -> None:
        """Decode with ``adapters`` (from ``resolve``) from now on. Only between two decodes.

        After a change, the next decode rebuilds its graph, which takes some milliseconds.
        """
        if adapters != self._applied:
            self.set(context, adapters)
            self._applied = adapters

    def set(self, context: Any, adapters: Adapters) -> None:
        """Decode with ``adapters`` from now on, as ``apply``, in a context whose adapters the caller keeps in mind."""
        natives = [self._natives[name] for name, _ in adapters]
        scales = [scale for _, scale in adapters]
        llama_cpp.llama_set_adapters_lora(
            context,
            (llama_cpp.llama_adapter_lora_p_ctypes * len(natives))(*natives),
            len(natives),
            (ctypes.c_float * len(scales))(*scales),
        )

    def forget_applied(self) -> None:
        """Forget what ``apply`` has set: the context is a new one, without adapters."""
        self._applied = ()

    def free(self) -> None:
        """Free the adapters. Call it after the last decode and before the model is freed."""
        for native in self._natives.values():
            llama_cpp.llama_adapter_lora_free(native)
        self._natives.clear()

    def _expected(self) -> str:
        names = sorted(self.names)
        if not names:
            return "to be absent or empty, since no adapter is loaded"
        more = ", …" if len(names) > _MAX_NAMES_SHOWN else ""
        return f"one of {', '.join(map(_shown, names[:_MAX_NAMES_SHOWN]))}{more}"


def _shown(name: str) -> str:
    return json.dumps(name[:_MAX_SHOWN])


def _name_and_path(file: str) -> tuple[str, str]:
    name, named, path = file.partition("=")
    if not named:
        return Path(file).stem, file
    if not name or not path:
        raise ModelError(f"lora {file!r}: expected FILE or NAME=FILE, got no {'file' if name else 'name'}")
    return name, path


def _error(path: str, problem: str) -> ModelError:
    return ModelError(f"lora file {path!r}: {problem}")


def _load(model: Model, path: str) -> Any:
    native = llama_cpp.llama_adapter_lora_init(model.native, os.fsencode(path))
    if not native:
        raise _error(
            path, f"it doesn't fit {model.name}: give one made for this model (--log-level debug shows what differs)"
        )
    if llama_cpp.llama_adapter_get_alora_n_invocation_tokens(native):
        llama_cpp.llama_adapter_lora_free(native)
        raise _error(path, "it works from an invocation sequence on (aLoRA), which can't be served; give a plain LoRA")
    return native


# The GGUF header is read by ggml. The bindings lack this part of its API, so its prototypes are declared here.


class _OpenParams(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


_open = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, _OpenParams)(("gguf_init_from_file", libggml))
_close = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("gguf_free", libggml))
_find_key = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p)(("gguf_find_key", libggml))
_key_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)(("gguf_get_kv_type", libggml))
_string = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)(("gguf_get_val_str", libggml))
_n_tensors = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(("gguf_get_n_tensors", libggml))
_tensor_name = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)(("gguf_get_tensor_name", libggml))
_tensor_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)(("gguf_get_tensor_type", libggml))
_tensor_shape = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p, ctypes.c_int64)(
    ("gguf_get_tensor_ne", libggml)
)
_is_quantized = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int)(("ggml_is_quantized", libggml))


@contextmanager
def _header(path: str) -> Iterator[int]:
    header = _open(os.fsencode(path), _OpenParams(True, None))
    if not header:
        raise _error(path, "llama.cpp can't read it; download or convert it again")
    try:
        yield header
    finally:
        _close(header)


def _text(header: int, key: bytes) -> str | None:
    """The value of ``key``; ``None`` where it is missing or not a string."""
    index = _find_key(header, key)
    if index < 0 or _key_type(header, index) != _STRING:
        return None
    value: bytes = _string(header, index)
    return value.decode(errors="replace")


def _check(model: Model, path: str) -> None:
    architecture = _model_value(model, b"general.architecture")
    experts = int(_model_value(model, f"{architecture}.expert_count".encode()) or 0)
    with _header(path) as header:
        if (_text(header, b"general.type"), _text(header, b"adapter.type")) != ("adapter", "lora"):
            raise _error(path, "not a LoRA adapter; convert one with llama.cpp's convert_lora_to_gguf.py")
        found = _text(header, b"general.architecture")
        if found != architecture:
            raise _error(path, f"made for the architecture {_shown(found or '')}, the model's is {architecture!r}")
        alpha = _find_key(header, b"adapter.lora.alpha")
        if alpha >= 0 and _key_type(header, alpha) != _FLOAT32:
            raise _error(path, "damaged, adapter.lora.alpha is not a 32-bit float; convert it again")
        for index in range(_n_tensors(header)):
            _check_tensor(header, index, path, experts)


def _check_tensor(header: int, index: int, path: str, experts: int) -> None:
    name = _tensor_name(header, index).decode(errors="replace")
    target = name.removesuffix(".lora_a").removesuffix(".lora_b")
    # The output layer may share this tensor; llama.cpp then multiplies it with the adapter's transposed matrix.
    if target.endswith("token_embd.weight"):
        raise _error(path, "it changes the token embeddings, which can't be served; train one that leaves them")
    kind = _tensor_type(header, index)
    if kind not in (llama_cpp.GGML_TYPE_F32, llama_cpp.GGML_TYPE_F16, _BF16) and not _is_quantized(kind):
        raise _error(path, f"tensor {name!r} has type {kind}, expected floats or a quantized type; convert it again")
    shape = _tensor_shape(header, index)[:_DIMS]
    expected = [experts if target.endswith("_exps.weight") else 1, 1]
    if shape[2:] != expected or min(shape) < 1:
        raise _error(
            path, f"tensor {name!r} has the shape {shape}, expected [n, n, {expected[0]}, 1]; convert it again"
        )


def _model_value(model: Model, key: bytes) -> str:
    buffer = ctypes.create_string_buffer(256)
    n = llama_cpp.llama_model_meta_val_str(model.native, key, buffer, len(buffer))
    return "" if n < 0 else buffer.value.decode(errors="replace")
