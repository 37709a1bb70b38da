"""The catalogue of models: the default one, those in tables of the configuration file, and those in a folder."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from umaserve.core.errors import ConfigError, ModelNotFound
from umaserve.core.model_names import DEFAULT, MAX_NAME, is_name, spellings
from umaserve.settings import gguf_header, model_files
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.settings.daemon.engine import PLACEMENT, ROPE
from umaserve.settings.kinds import Kind, path, quoted, switch
from umaserve.settings.model_files import ModelFile, name_of
from umaserve.settings.sources import Conflict, checked, checked_table, nearest, printable, read_toml

log = logging.getLogger(__name__)

OWN = ("mmproj", "chat_template", "lora", "draft_model", *ROPE, *PLACEMENT)
"""Settings of one model alone: no other takes the default model's over."""
VOICE = ("tts_model", "tts_mmproj")
"""The default model's engine speaks for all."""
PER_MODEL = (
    *OWN,
    *("n_ctx", "parallel", "n_batch", "n_ubatch", "threads", "threads_batch", "n_gpu_layers", "flash_attn"),
    *("split_mode", "tensor_split", "main_gpu"),
    *("kv_type", "kv_type_k", "kv_type_v", "rpc", "speculation", "pooling", "weights"),
    *("reasoning_budget", "host_cache_bytes", "media_cache_bytes"),
)
"""The settings of the daemon that a model's table may have."""
OTHER_NAMES = {"draft": "draft_model"}
MAX_ALIASES, MAX_TAGS, MAX_TAG, MAX_DESCRIPTION = 64, 64, 64, 1024
_NAME = f"1 to {MAX_NAME} bytes of printable characters, not {quoted(DEFAULT)}"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model that the daemon may serve."""

    name: str
    config: Config
    """Settings with which an engine is started for the model."""
    aliases: tuple[str, ...] = ()
    description: str = ""
    tags: tuple[str, ...] = ()
    """Words for clients that list models."""
    pin: bool = False
    """Whether it stays once it is loaded."""
    preload: bool = False
    """Whether it is loaded before anybody asks for it."""
    idle_unload: float = 0.0
    """After how many seconds without work it is unloaded; 0: never."""
    size_bytes: int = 0
    """Bytes of the model's files; 0 where they can't be read."""
    architecture: str = ""
    """llama.cpp's name of the model's architecture; empty where its file doesn't say."""
    training_tokens: int = 0
    """The context that the model was trained with; 0 where its file doesn't say."""

    def of_file(self, other: ModelSpec) -> ModelSpec:
        """Model of these settings, with what the file of ``other`` tells."""
        return replace(
            self,
            size_bytes=other.size_bytes,
            architecture=other.architecture,
            training_tokens=other.training_tokens,
        )

    @property
    def context_tokens(self) -> int:
        """Tokens that a sequence may have by the settings and the training, if memory has room for them; 0 where
        neither says."""
        cells = max(0, self.config.n_ctx)
        return min(cells, self.training_tokens) or cells or self.training_tokens


class Catalogue:
    """All models that the daemon may serve. Raises ConfigError for names that stand for two of them."""

    def __init__(self, default: ModelSpec, others: Sequence[ModelSpec] = (), *, strict: bool = False) -> None:
        """``strict``: names of no model are refused; otherwise they mean the default one."""
        self.default = default
        self.models = (default, *sorted(others, key=lambda spec: spec.name))
        """All models, the default one first, the others by name."""
        self._strict = strict
        self._named: dict[str, ModelSpec] = {}
        for spec in self.models:
            for name in (spec.name, *spec.aliases):
                if (other := self._named.setdefault(name, spec)) is not spec:
                    files = " and ".join(printable(one.config.model or "the default model") for one in (other, spec))
                    raise ConfigError(f"models: {printable(name)} is the name of two models: {files}")

    def find(self, name: str) -> ModelSpec | None:
        """The model of this name."""
        if name in ("", DEFAULT):
            return self.default
        return next((self._named[spelling] for spelling in spellings(name) if spelling in self._named), None)

    @property
    def longest_context(self) -> int:
        """Tokens of the longest context of all models, as far as is known."""
        return max(spec.context_tokens for spec in self.models)

    def choose(self, name: str) -> ModelSpec:
        """The model that a request means by ``name``; raises ``ModelNotFound``."""
        spec = self.find(name)
        if spec is None and self._strict:
            raise ModelNotFound(name)
        return spec or self.default


def read(config: Config, file: str) -> Catalogue:
    """The catalogue of ``config``, the tables in the configuration ``file``, if there is one, and the folder. Raises
    ConfigError."""
    tables = _tables(config, file)
    taken = {os.path.realpath(spec.config.model) for spec in tables}
    found = (one for one in _in_folder(config.models_dir) if os.path.realpath(one.path) not in taken)
    listed = [*tables, *(_found(config, one) for one in found)]
    meant = next((spec for spec in listed if _is_default(spec, config)), None)
    if meant is None and listed and config.model and not os.path.exists(config.model):
        known = ", ".join(spec.name for spec in listed)
        hint = nearest(config.model, [spec.name for spec in listed])
        raise ConfigError(f"model: {printable(config.model)}: no such file, and no model of that name{hint}: {known}")
    default = _alone(config) if meant is None else _as_default(meant, config)
    others = [spec for spec in listed if spec is not meant]
    default, *others = _with_other_names([default, *others])
    return Catalogue(default, others, strict=config.strict_models)


def check_files(catalogue: Catalogue) -> None:
    """Raise ConfigError where a file that a model is made of is missing or can't be read."""
    for spec in catalogue.models:
        place = "" if spec is catalogue.default else f"models.{printable(spec.name)}."
        for key, file in _files(spec.config):
            try:
                for part in model_files.parts(file):
                    model_files.check_readable(part)
            except OSError as error:
                advice = "name a GGUF file that this user may read"
                raise ConfigError(f"{place}{key}: {printable(file)}: {error.strerror}: {advice}") from None


def _files(config: Config) -> Iterator[tuple[str, str]]:
    """The files that a model is made of, each with its setting."""
    model = config.model or model_files.default_model()
    if not model:
        advice = "name one with --model, or install the default: pip install 'umaserve[default-model]'"
        raise ConfigError(f"model: there is none: {advice}")
    yield "model", model
    for key in ("mmproj", "draft_model", *VOICE):
        if file := getattr(config, key):
            yield key, file
    for named in config.lora:
        name, equals, file = named.partition("=")
        yield "lora", file if equals else name


def _is_default(spec: ModelSpec, config: Config) -> bool:
    """Whether ``config.model`` is its name or its file."""
    if set(spellings(config.model)) & {spec.name, *spec.aliases}:
        return True
    where = config.model or model_files.default_model()
    return os.path.realpath(spec.config.model) == os.path.realpath(where)


def _as_default(spec: ModelSpec, config: Config) -> ModelSpec:
    unset = (key for key in (*OWN, *VOICE) if getattr(spec.config, key) == SETTINGS.by_key[key].default)
    return replace(spec, config=replace(spec.config, **{key: getattr(config, key) for key in unset}))


def _alone(config: Config) -> ModelSpec:
    """The default model, which is neither in a table nor in the folder."""
    where = config.model or model_files.default_model()
    name = name_of(where)
    name = name if is_name(name) else DEFAULT
    return ModelSpec(name, config, idle_unload=config.idle_unload, **_of_file(where))


def _in_folder(folder: str) -> list[ModelFile]:
    if not folder:
        return []
    try:
        found, left_out = model_files.in_folder(folder)
    except OSError as error:
        raise ConfigError(f"models_dir: {printable(folder)}: can't be read: {error.strerror}") from None
    left_out += [f"{one.path}: expected a name of {_NAME}" for one in found if not is_name(one.name)]
    for problem in left_out:
        log.warning("models_dir: skipped: %s", printable(problem))
    return [one for one in found if is_name(one.name)]


def _tables(config: Config, file: str) -> list[ModelSpec]:
    """The models in the tables of the configuration file."""
    if not file:
        return []
    shown = printable(file)
    tables = checked_table(read_toml(file).get("models", {}), f"{shown}: models")
    return [_table(config, name, table, f"{shown}: models.{printable(name)}") for name, table in tables.items()]


def _found(config: Config, found: ModelFile) -> ModelSpec:
    mine = replace(_without_own(config), model=found.path, mmproj=found.mmproj)
    return ModelSpec(found.name, mine, idle_unload=config.idle_unload, **_of_file(found.path))


def _table(config: Config, name: str, given: object, place: str) -> ModelSpec:
    """The model of the table ``[models.NAME]``."""
    if not is_name(name):
        raise ConfigError(f"{place}: expected a name of {_NAME}")
    table: dict[str, Any] = {}
    for key, value in checked_table(given, place).items():
        if key not in _KINDS:
            raise ConfigError(f"{place}.{printable(key)}: no such setting of a model{nearest(key, _KINDS)}")
        known = OTHER_NAMES.get(key, key)
        if known in table:
            raise ConfigError(f"{place}.{key}: expected only one of its names, got both")
        table[known] = checked(_KINDS[key], value, f"{place}.{key}")
    if "path" not in table:
        raise ConfigError(f"{place}.path: expected the path of a GGUF file, got none")
    file = table.pop("path")
    try:
        model_files.size_of(file)
    except OSError as error:
        raise ConfigError(f"{place}.path: {printable(file)}: can't be read: {error.strerror}") from None
    changes = {key: table.pop(key) for key in PER_MODEL if key in table}
    try:
        mine = replace(_without_own(config), model=file, **changes)
    except Conflict as conflict:
        raise ConfigError(f"{place}: {conflict}") from None
    return ModelSpec(name, mine, **_of_file(file), **{"idle_unload": config.idle_unload, **table})


def _without_own(config: Config) -> Config:
    return replace(config, **{key: getattr(_UNSET, key) for key in (*OWN, *VOICE)})


def _with_other_names(specs: Sequence[ModelSpec]) -> Iterator[ModelSpec]:
    """The models with the names of their files, and those by which the hub has them, as more aliases, unless these mean
    another model too."""
    others = [(name_of(spec.config.model), model_files.source_of(spec.config.model)) for spec in specs]
    meant = Counter(
        name for spec, more in zip(specs, others, strict=True) for name in {spec.name, *spec.aliases, *more}
    )
    for spec, more in zip(specs, others, strict=True):
        new = [name for name in more if meant[name] == 1 and is_name(name) and name not in (spec.name, *spec.aliases)]
        yield replace(spec, aliases=(*spec.aliases, *new))


def _of_file(file: str) -> Mapping[str, Any]:
    """Fields of ``ModelSpec`` that the (first) file of a model tells."""
    try:
        size = model_files.size_of(file)
    except OSError:
        return {}  # Loading it says what is wrong.
    trained = gguf_header.read(file)
    return {"size_bytes": size, "architecture": trained.architecture, "training_tokens": trained.tokens}


def _names() -> Kind[tuple[str, ...]]:
    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > MAX_ALIASES:
            raise ValueError
        if not all(isinstance(item, str) and is_name(item) for item in value):
            raise ValueError
        return tuple(dict.fromkeys(value))

    return Kind("A,B,...", f"an array of at most {MAX_ALIASES} strings, each {_NAME}", check)


def _description() -> Kind[str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > MAX_DESCRIPTION or not value.isprintable():
            raise ValueError
        return value

    return Kind("TEXT", f"at most {MAX_DESCRIPTION} printable characters", check)


def _tags() -> Kind[tuple[str, ...]]:
    def check(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or len(value) > MAX_TAGS:
            raise ValueError
        if not all(isinstance(item, str) and 0 < len(item) <= MAX_TAG and item.isprintable() for item in value):
            raise ValueError
        return tuple(dict.fromkeys(value))

    of = f"1 to {MAX_TAG} printable characters"
    return Kind("A,B,...", f"an array of at most {MAX_TAGS} strings, each of {of}", check)


_UNSET = Config()
_KINDS: Mapping[str, Kind[Any]] = {
    "path": path(),
    **{key: SETTINGS.by_key[key].kind for key in (*PER_MODEL, "idle_unload")},
    **{other: SETTINGS.by_key[key].kind for other, key in OTHER_NAMES.items()},
    "aliases": _names(),
    "description": _description(),
    "tags": _tags(),
    "pin": switch(),
    "preload": switch(),
}
"""The keys of a model's table."""
