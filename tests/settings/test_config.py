"""The settings: who wins, what is refused and in which words, and that the annotated file tells the truth."""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import ConfigError
from umaserve.settings.daemon import SETTINGS, Config
from umaserve.settings.kinds import AUTO
from umaserve.settings.sources import Conflict, Loaded

load, render = SETTINGS.load, SETTINGS.render

# A busy box makes no test fail.

ANNOTATED = Path(__file__).parents[2] / "conf" / "umaserve.toml"

# The contract, written down a second time so that a range can't be changed without a test saying so.
DEFAULTS: dict[str, Any] = {
    "socket": "/run/uma.sock",
    "socket_mode": 0o660,
    "protocol": "json",
    "keep_alive": False,
    "idle_timeout": 300.0,
    "drain_grace": 0.0,
    "drain_timeout": 10.0,
    "wyoming": "",
    "http": "",
    "http_socket": "",
    "ollama": False,
    "tls_cert": "",
    "tls_key": "",
    "api_keys": "",
    "insecure": False,
    "allow_host": (),
    "allow_origin": (),
    "cors_origin": (),
    "header_timeout": 10.0,
    "body_timeout": 30.0,
    "ping_interval": 20.0,
    "resume_window": 60.0,
    "resume_bytes": 16777216,
    "resume_file": "",
    "feedback_log": "",
    "recordings": "",
    "recordings_bytes": 1073741824,
    "recordings_age": 30.0,
    "store": "",
    "store_bytes": 134217728,
    "store_age": 30.0,
    "ref_audio": "",
    "page": True,
    "page_tool_servers": (),
    "slots_prompts": False,
    "llama_metrics": False,
    "vllm_metrics": False,
    "debug_echo": False,
    "max_sessions": 1024,
    "max_frame_bytes": AUTO,
    "max_chat_bytes": 134217728,
    "max_prompt_bytes": AUTO,
    "max_tokens": 0,
    "reasoning_budget": -1,
    "tx_high_water": 65536,
    "max_queue": 256,
    "request_timeout": 600.0,
    "rate_requests": 0.0,
    "rate_tokens": 0.0,
    "memory_reserve": 67108864,
    "host_cache_bytes": AUTO,
    "kv_cache": "",
    "kv_cache_bytes": 8589934592,
    "slot_save_path": "",
    "media_cache_bytes": 268435456,
    "shared_prefix_cache": False,
    "content_filter": "",
    "slo_ttft_ms": 1000.0,
    "slo_tbt_ms": 80.0,
    "model": "",
    "weights": "fast",
    "weights_cache": "",
    "mmproj": "",
    "chat_template": "",
    "trust_content": False,
    "n_ctx": AUTO,
    "parallel": 16,
    "n_batch": 512,
    "n_ubatch": 512,
    "threads": 0,
    "threads_batch": 0,
    "n_gpu_layers": -1,
    "split_mode": "layer",
    "tensor_split": (),
    "main_gpu": 0,
    "override_tensor": (),
    "n_cpu_moe": 0,
    "rope_scaling": "model",
    "rope_scale": 0.0,
    "rope_freq_base": 0.0,
    "yarn_orig_ctx": 0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "flash_attn": "auto",
    "kv_type": "f16",
    "kv_type_k": "",
    "kv_type_v": "",
    "rpc": (),
    "lora": (),
    "engine_timeout": 30.0,
    "speculation": True,
    "draft_model": "",
    "tts_model": "",
    "tts_mmproj": "",
    "pooling": "model",
    "models_dir": "",
    "model_downloads": 0,
    "strict_models": False,
    "idle_unload": 0.0,
    "relay": (),
    "worker_secret": "",
    "worker_secret_file": "",
    "worker_name": "",
    "relay_provider": "local",
    "relay_ca_file": "",
    "log_level": "info",
    "log_format": "text",
    "access_log": 1.0,
    "otel_endpoint": "",
}
WHOLE = {
    "max_sessions": (1, 65536),
    "max_tokens": (0, 1048576),
    "reasoning_budget": (-1, 1048576),
    "max_queue": (1, 65536),
    "n_ctx": (64, 4194304),
    "parallel": (1, 256),
    "n_batch": (1, 65536),
    "n_ubatch": (1, 65536),
    "threads": (0, 512),
    "threads_batch": (0, 512),
    "n_gpu_layers": (-1, 10000),
    "main_gpu": (0, 255),
    "n_cpu_moe": (0, 10000),
    "yarn_orig_ctx": (0, 4194304),
}
SIZE = {
    "max_frame_bytes": (64, 1 << 30),
    "max_chat_bytes": (64, 1 << 30),
    "max_prompt_bytes": (1, 1 << 30),
    "tx_high_water": (1024, 64 << 20),
    "resume_bytes": (0, 1 << 30),
    "memory_reserve": (0, 1 << 40),
    "recordings_bytes": (1 << 20, 1 << 40),
    "store_bytes": (8 << 20, 16 << 30),
    "host_cache_bytes": (0, 1 << 40),
    "kv_cache_bytes": (1 << 20, 1 << 40),
    "media_cache_bytes": (0, 1 << 40),
    "model_downloads": (0, 1 << 40),
}
REAL = {
    "idle_timeout": (0.05, 86400.0),
    "drain_grace": (0.0, 3600.0),
    "drain_timeout": (0.0, 3600.0),
    "engine_timeout": (0.0, 86400.0),
    "header_timeout": (0.05, 3600.0),
    "body_timeout": (0.05, 3600.0),
    "ping_interval": (0.05, 3600.0),
    "resume_window": (0.0, 3600.0),
    "recordings_age": (0.0, 36500.0),
    "store_age": (0.0, 36500.0),
    "request_timeout": (0.0, 86400.0),
    "idle_unload": (0.0, 2592000.0),
    "rate_requests": (0.0, 1e9),
    "rate_tokens": (0.0, 1e9),
    "slo_ttft_ms": (1.0, 3600000.0),
    "slo_tbt_ms": (1.0, 3600000.0),
    "access_log": (0.0, 1.0),
    "rope_scale": (0.0, 1024.0),
    "rope_freq_base": (0.0, 1e12),
    "yarn_ext_factor": (-1.0, 1024.0),
    "yarn_attn_factor": (-1.0, 1024.0),
    "yarn_beta_fast": (-1.0, 1024.0),
    "yarn_beta_slow": (-1.0, 1024.0),
}
CHOICE = {
    "protocol": ["json", "newline"],
    "weights": ["fast", "as-is", "converted", "mapped"],
    "flash_attn": ["auto", "on", "off"],
    "split_mode": ["layer", "row", "tensor", "none"],
    "rope_scaling": ["model", "none", "linear", "yarn"],
    "kv_type": ["f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
    "kv_type_k": ["f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
    "kv_type_v": ["f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"],
    "pooling": ["model", "mean", "cls", "last"],
    "log_level": ["debug", "info", "warning", "error"],
    "log_format": ["text", "json"],
}
PATHS = {
    "socket": 1,
    "http_socket": 0,
    "tls_cert": 0,
    "tls_key": 0,
    "api_keys": 0,
    "resume_file": 0,
    "feedback_log": 0,
    "recordings": 0,
    "store": 0,
    "kv_cache": 0,
    "slot_save_path": 0,
    "ref_audio": 0,
    "content_filter": 0,
    "model": 0,
    "weights_cache": 0,
    "mmproj": 0,
    "chat_template": 0,
    "draft_model": 0,
    "tts_model": 0,
    "tts_mmproj": 0,
    "models_dir": 0,
    "worker_secret_file": 0,
    "relay_ca_file": 0,
}
"""The fewest characters of each."""
SWITCHES = [
    "keep_alive",
    "ollama",
    "insecure",
    "page",
    "slots_prompts",
    "llama_metrics",
    "vllm_metrics",
    "debug_echo",
    "shared_prefix_cache",
    "speculation",
    "strict_models",
    "trust_content",
]
WORDS = ["allow_host", "allow_origin", "cors_origin", "lora"]
VARIABLES = {
    "socket": "UMA_SOCK",
    "worker_secret": "WORKER_SECRET",
    "worker_secret_file": "WORKER_SECRET_FILE",
    "relay_provider": "UMA_WORKER_PROVIDER",
    "relay_ca_file": "UMA_WORKER_CA_FILE",
}
"""Those that aren't UMA_ and the key."""

PARTNERS: dict[str, dict[str, Any]] = {
    "n_batch": {"n_ubatch": "1", "parallel": "1"},
    "n_ubatch": {"n_batch": "65536"},
    "http": {"insecure": True},
    "wyoming": {"insecure": True},
    "relay": {"worker_secret": "s3cret"},
    "model_downloads": {"models_dir": "another"},
}
"""What else must be set so that every value of a setting holds together with the rest."""

RELAYS = ["wss://relay.example.org", "https://[::1]:8443/deep", "ws://127.0.0.1:8090", "http://localhost/"]
HOSTS = ["127.0.0.1", "[::1]", "localhost", "0.0.0.0", "[::]", "box.example"]
PORTS = st.integers(0, 65535)
WRONG_TYPE = ["true", "1.5", "7", '"no such thing"', "[1]", '["a b"]', "{a = 1}", "1979-05-27", "07:32:00", "nan"]


WORD = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=","), min_size=1, max_size=256)


def partners_of(key: str, value: Any) -> dict[str, Any]:
    if key == "slot_save_path" and value:
        return {"kv_cache": "another"}
    if key in ("tls_cert", "tls_key") and value:
        return {"http": "localhost:0", "tls_key" if key == "tls_cert" else "tls_cert": "the other"}
    if key in ("tts_model", "tts_mmproj") and value:
        return {"tts_mmproj" if key == "tts_model" else "tts_model": "the other"}
    return PARTNERS.get(key, {})


def values_of(key: str) -> st.SearchStrategy[Any]:
    if key in WHOLE:
        low, high = WHOLE[key]
        return st.integers(low, high) | (st.just(0) if key == "n_ctx" else st.nothing())
    if key in SIZE:
        return st.integers(*SIZE[key]) | st.sampled_from(SIZE[key])
    if key in REAL:
        return st.floats(*REAL[key])
    if key in CHOICE:
        return st.sampled_from(CHOICE[key])
    if key in PATHS:
        paths = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=PATHS[key])
        return paths.filter(lambda path: path != "--")  # which argparse takes for its own, also behind "--flag="
    if key in SWITCHES:
        return st.booleans()
    if key in WORDS:
        return st.lists(WORD, max_size=64).map(tuple)
    if key == "tensor_split":
        return st.lists(st.sampled_from(["0", "3", "0.25", "1e3"]), max_size=64).map(tuple)
    if key == "override_tensor":
        return st.lists(st.sampled_from(["exps=CPU", r"blk\.[0-9]=CUDA0", "a=b=CPU"]), max_size=64).map(tuple)
    if key == "rpc":
        return st.lists(st.sampled_from(["127.0.0.1:50052", "[::1]:1", "box.example:9"]), max_size=64).map(tuple)
    if key == "relay":
        return st.lists(st.sampled_from(RELAYS), max_size=64).map(tuple)
    if key == "page_tool_servers":
        servers = ["https://tools.example.org/mcp", "http://127.0.0.1:9000/", "http://box"]
        return st.lists(st.sampled_from(servers), max_size=64).map(tuple)
    if key in ("worker_secret", "worker_name", "relay_provider"):
        return WORD.filter(lambda word: word != "--") | st.just(DEFAULTS[key])
    if key == "otel_endpoint":
        return st.sampled_from(["", "http://127.0.0.1:4318", "https://collector.example/deep"])
    if key == "http":
        return st.just("") | st.builds("{}:{}".format, st.sampled_from(HOSTS), PORTS)
    if key == "wyoming":
        address = st.builds("{}{}:{}".format, st.sampled_from(["", "tcp:", "tcp://"]), st.sampled_from(HOSTS), PORTS)
        return st.just("") | address | st.sampled_from(["unix:/run/wyoming.sock", "unix:é", "unix:///run/wyoming"])
    return {"socket_mode": st.integers(0, 0o777)}[key]


def as_text(key: str, value: Any) -> str:
    """The value as a flag or a variable spells it."""
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:04o}" if key == "socket_mode" else str(value)


def as_toml(key: str, value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ",".join(as_toml("", word) for word in value) + "]"
    if key == "socket_mode" or isinstance(value, str):
        return '"' + "".join(f"\\U{ord(char):08x}" for char in as_text(key, value)) + '"'
    return str(value).lower()


def as_flag(key: str, value: Any) -> str:
    flag = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={as_text(key, value)}"


def variable(key: str) -> str:
    return VARIABLES.get(key, f"UMA_{key.upper()}")


@functools.cache
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    SETTINGS.add_arguments(made)
    return made


def parse(*arguments: str) -> argparse.Namespace:
    return parser().parse_args(arguments)


def load_file(file: Path, text: str | bytes, flags: Mapping[str, object] | None = None) -> Loaded[Config]:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return load({"config": str(file), **(flags or {})}, {})


def refusal(flags: Mapping[str, object], environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags, environ or {})
    return one_line(caught.value)


def file_refusal(file: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        load_file(file, text)
    return one_line(caught.value)


def one_line(error: ConfigError) -> str:
    assert len(str(error).splitlines()) == 1
    return str(error)


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conf") / "x.toml"


every_setting = pytest.mark.parametrize("key", DEFAULTS)


# Defaults and precedence


def test_defaults() -> None:
    loaded = load(parse(), {})
    assert asdict(loaded.config) == DEFAULTS == asdict(Config())
    assert loaded.origins == dict.fromkeys(DEFAULTS, "default")


def test_the_types_of_the_defaults_are_those_of_the_values() -> None:
    assert {key: type(value) for key, value in asdict(Config()).items()} == {
        key: type(value) for key, value in DEFAULTS.items()
    }


def test_the_tables_of_this_test_cover_every_setting() -> None:
    tables = [*WHOLE, *SIZE, *REAL, *CHOICE, *PATHS, *SWITCHES, *WORDS, "socket_mode", "http", "wyoming"]
    tables += [
        "rpc",
        "tensor_split",
        "override_tensor",
        "relay",
        "page_tool_servers",
        "worker_secret",
        "worker_name",
        "relay_provider",
        "otel_endpoint",
    ]
    assert sorted(tables) == sorted(DEFAULTS) == sorted(field.name for field in fields(Config))


def test_the_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().n_ctx = 1  # type: ignore[misc]


@every_setting
@given(data=st.data())
def test_flag_then_environment_then_file_then_default(key: str, data: st.DataObject, file: Path) -> None:
    draw = st.none() | values_of(key)
    from_flag, from_environment, from_file = (data.draw(draw, label) for label in ("flag", "env", "file"))
    ranked = [
        (from_flag, "flag"),
        (from_environment, f"environment {variable(key)}"),
        (from_file, f"file {file}"),
        (DEFAULTS[key], "default"),
    ]
    value, origin = next(one for one in ranked if one[0] is not None)
    partners = partners_of(key, value)
    arguments = [as_flag(*partner) for partner in partners.items()]
    environ = {}
    if from_flag is not None:
        arguments.append(as_flag(key, from_flag))
    if from_environment is not None:
        environ[variable(key)] = as_text(key, from_environment)
    if from_file is not None:
        file.write_text(f"{key} = {as_toml(key, from_file)}\n")
        arguments.append(f"--config={file}")

    loaded = load(parse(*arguments), environ)

    assert getattr(loaded.config, key) == value
    assert type(getattr(loaded.config, key)) is type(DEFAULTS[key])
    assert loaded.origins[key] == origin
    others = DEFAULTS.keys() - partners.keys() - {key}
    assert all(loaded.origins[other] == "default" for other in others)
    assert all(getattr(loaded.config, other) == DEFAULTS[other] for other in others)


def test_the_flag_names_the_file_before_the_environment_does(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("parallel = 1\n")
    two.write_text("parallel = 2\n")
    named = {"UMA_CONFIG": str(two)}
    assert load(parse(), named).config.parallel == 2
    assert load(parse(f"--config={one}"), named).config.parallel == 1
    assert load(parse("--config="), named).config.parallel == DEFAULTS["parallel"]
    assert load(parse(), {"UMA_CONFIG": ""}).origins["parallel"] == "default"


def test_what_is_not_ours_is_left_alone() -> None:
    loaded = load({"command": "serve", "print_config": True}, {"PATH": "/bin", "uma_sock": "x", "UMASK": "7"})
    assert loaded == load({}, {})


def test_the_last_of_a_repeated_flag_wins() -> None:
    assert load(parse("--parallel=2", "--parallel", "3"), {}).config.parallel == 3
    assert load(parse("--keep-alive", "--no-keep-alive"), {}).config.keep_alive is False


def test_a_negative_number_can_follow_its_flag() -> None:
    assert load(parse("--n-gpu-layers", "-1"), {}).origins["n_gpu_layers"] == "flag"


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("True", True), ("1", True), ("false", False), ("FALSE", False), ("0", False)],
)
def test_a_boolean_variable(text: str, value: bool) -> None:
    assert load({}, {"UMA_KEEP_ALIVE": text}).config.keep_alive is value


@pytest.mark.parametrize(
    ("spelled", "size"), [("1KiB", 1024), ("3MiB", 3 << 20), ("1GiB", 1 << 30), ("65", 65), ("0065", 65)]
)
def test_sizes_are_spelled_alike_everywhere(spelled: str, size: int, file: Path) -> None:
    assert load({"max_frame_bytes": spelled}, {}).config.max_frame_bytes == size
    assert load({}, {"UMA_MAX_FRAME_BYTES": spelled}).config.max_frame_bytes == size
    assert load_file(file, f'max_frame_bytes = "{spelled}"').config.max_frame_bytes == size


@pytest.mark.parametrize(("spelled", "bits"), [("660", 0o660), ("0440", 0o440), ("0000", 0), ("0777", 0o777)])
def test_the_mode_is_octal_everywhere(spelled: str, bits: int, file: Path) -> None:
    assert load({"socket_mode": spelled}, {}).config.socket_mode == bits
    assert load({}, {"UMA_SOCKET_MODE": spelled}).config.socket_mode == bits
    assert load_file(file, f'socket_mode = "{spelled}"').config.socket_mode == bits


def test_a_whole_number_will_do_for_a_real_one(file: Path) -> None:
    loaded = load_file(file, "drain_timeout = 3")
    assert repr(loaded.config.drain_timeout) == "3.0"


# Ranges


@pytest.mark.parametrize(("key", "ends"), (WHOLE | SIZE | REAL).items())
def test_both_ends_of_every_range(key: str, ends: tuple[float, float], file: Path) -> None:
    partners = PARTNERS.get(key, {})
    for end in ends:
        assert getattr(load({key: str(end), **partners}, {}).config, key) == end
        assert getattr(load(partners, {variable(key): str(end)}).config, key) == end
        assert getattr(load_file(file, f"{key} = {end}", partners).config, key) == end


@pytest.mark.parametrize(("key", "ends"), (WHOLE | SIZE | REAL).items())
def test_just_outside_of_every_range(key: str, ends: tuple[float, float], file: Path) -> None:
    low, high = ends
    outside: list[float] = [
        math.nextafter(low, -math.inf),
        math.nextafter(high, math.inf),
        math.inf,
        math.nan,
    ]
    if key not in REAL:
        outside = [int(low) - 1, int(high) + 1]
    for value in outside:
        assert refusal({key: str(value)}).startswith(f"flag --{key.replace('_', '-')}: expected ")
        assert refusal({}, {variable(key): str(value)}).startswith(f"environment {variable(key)}: expected ")
        assert file_refusal(file, f"{key} = {value}").startswith(f"{file}: {key}: expected ")


def test_n_ctx_is_nothing_between_zero_and_its_least() -> None:
    assert load({"n_ctx": "0"}, {}).config.n_ctx == 0
    expected = 'flag --n-ctx: expected "auto", or 0 or a whole number from 64 to 4194304, got the number 63'
    assert refusal({"n_ctx": "63"}) == expected
    assert refusal({"n_ctx": "1"}).endswith("got the number 1")


@pytest.mark.parametrize("key", ["n_ctx", "max_prompt_bytes", "max_frame_bytes"])
def test_the_program_chooses_where_it_is_left_to_it(key: str, file: Path) -> None:
    for loaded in (load({key: "auto"}, {}), load({}, {variable(key): "auto"}), load_file(file, f'{key} = "auto"')):
        assert getattr(loaded.config, key) == AUTO
        assert f'{key} = "auto"' in [line.split("#")[0].rstrip() for line in render(loaded).splitlines()]
    assert 'expected "auto", or ' in refusal({key: "-1"})
    assert 'expected "auto", or ' in file_refusal(file, f"{key} = -1")


@pytest.mark.parametrize(
    ("given", "context", "prompt", "frame"),
    [
        ({}, 0, 256 << 10, 1 << 20),
        ({}, 8192, 256 << 10, 1 << 20),
        ({}, 32768, 512 << 10, 1 << 20),
        ({}, 131072, 2 << 20, 4 << 20),
        ({}, 1 << 27, 1 << 30, 1 << 30),
        ({"max_prompt_bytes": "4MiB"}, 8192, 4 << 20, 8 << 20),
        ({"max_prompt_bytes": "1GiB"}, 8192, 1 << 30, 1 << 30),
        ({"max_prompt_bytes": "1"}, 8192, 1, 1 << 20),
        ({"max_frame_bytes": "1000"}, 131072, 1000, 1000),
        ({"max_frame_bytes": "64MiB"}, 131072, 2 << 20, 64 << 20),
        ({"max_prompt_bytes": "5", "max_frame_bytes": "64"}, 131072, 5, 64),
    ],
)
def test_the_limit_of_prompts_follows_from_the_context_and_that_of_frames_from_it(
    given: dict[str, str], context: int, prompt: int, frame: int
) -> None:
    sized = load(given, {}).config.sized(context)
    assert (sized.max_prompt_bytes, sized.max_frame_bytes) == (prompt, frame)


@pytest.mark.parametrize(
    ("n_ctx", "parallel", "trained", "cells"),
    [
        (AUTO, 16, 8192, 32768),
        (AUTO, 2, 8192, 16384),
        (AUTO, 16, 2048, 16384),
        (AUTO, 1, 512, 1024),
        (AUTO, 64, 8192, 65536),
        (AUTO, 16, 1 << 20, 4194304),
        (0, 16, 8192, 8192),
        (16384, 16, 8192, 16384),
    ],
)
def test_cells_by_what_the_model_was_trained_for(n_ctx: int, parallel: int, trained: int, cells: int) -> None:
    assert Config(n_ctx=n_ctx, parallel=parallel).cells_for(trained) == cells


@pytest.mark.parametrize(("key", "choices"), CHOICE.items())
def test_every_choice_and_no_other(key: str, choices: list[str]) -> None:
    for value in choices:
        assert getattr(load({key: value}, {}).config, key) == value
    if DEFAULTS[key] == "":
        assert getattr(load({key: ""}, {}).config, key) == ""
    else:
        assert "expected one of " in refusal({key: ""})
    for value in ("nonsense", choices[0].upper(), f"{choices[0]} "):
        assert "expected one of " in refusal({key: value})


# Refusals


def test_refused_in_a_file(file: Path) -> None:
    expected = 'expected "auto", or 0 or a whole number from 64 to 4194304, got'
    assert file_refusal(file, 'n_ctx = "big"') == f'{file}: n_ctx: {expected} the string "big"'
    assert file_refusal(file, "n_ctx = true") == f"{file}: n_ctx: {expected} the boolean true"
    assert file_refusal(file, "n_ctx = 64.0") == f"{file}: n_ctx: {expected} the number 64.0"
    assert file_refusal(file, "n_ctx = [64]") == f"{file}: n_ctx: {expected} an array"
    assert file_refusal(file, "[n_ctx]") == f"{file}: n_ctx: {expected} a table"
    assert file_refusal(file, "n_ctx = 1979-05-27") == f"{file}: n_ctx: {expected} a date or time"
    assert file_refusal(file, f"n_ctx = 0x{'f' * 9999}").endswith(f"{expected} a number of more than 64 bits")
    assert file_refusal(file, 'n_ctx = "64"').endswith(f'{expected} the string "64"')


ADDRESS_EXPECTED = (
    'expected an address as HOST:PORT, such as "127.0.0.1:8080" or "[::1]:8080", or several with commas between them,'
    " or an empty string"
)
WORDS_EXPECTED = (
    "expected an array (a flag or variable: a comma-separated list) of at most 64 strings,"
    " each 1 to 256 printable ASCII characters without spaces and commas"
)


@pytest.mark.parametrize(
    ("key", "text", "error"),
    [
        ("n_ctx", "1.5", 'expected "auto", or 0 or a whole number from 64 to 4194304, got the string "1.5"'),
        ("n_ctx", "", 'expected "auto", or 0 or a whole number from 64 to 4194304, got the string ""'),
        ("parallel", "two\nlines", 'expected a whole number from 1 to 256, got the string "two\\nlines"'),
        ("idle_timeout", "soon", 'expected a number of seconds from 0.05 to 86400, got the string "soon"'),
        ("slo_ttft_ms", "0", "expected a number of ms from 1 to 3600000, got the number 0.0"),
        (
            "max_frame_bytes",
            "1MB",
            'expected "auto", or a size from 64 to 1GiB, such as 65536 or "64KiB", got the string "1MB"',
        ),
        (
            "max_frame_bytes",
            "2GiB",
            'expected "auto", or a size from 64 to 1GiB, such as 65536 or "64KiB", got the string "2GiB"',
        ),
        ("socket", "", 'expected a path in UTF-8, not empty, got the string ""'),
        ("socket", "a\0b", 'expected a path in UTF-8, not empty, got the string "a\\u0000b"'),
        ("model", "a\udcff", 'expected a path in UTF-8, got the string "a\\udcff"'),
        ("protocol", "xml", 'expected one of "json", "newline", got the string "xml"'),
        ("http", "8080", f'{ADDRESS_EXPECTED}, got the string "8080"'),
        ("http", "[fe80::1%a\nb]:80", f'{ADDRESS_EXPECTED}, got the string "[fe80::1%a\\nb]:80"'),
        ("allow_host", "a,,b", f'{WORDS_EXPECTED}, got the string "a,,b"'),
        ("rate_requests", "-1", "expected a number of requests/minute from 0 to 1000000000, got the number -1.0"),
        (
            "resume_bytes",
            "2GiB",
            'expected a size from 0 to 1GiB, such as 65536 or "64KiB", got the string "2GiB"',
        ),
        ("keep_alive", "yes", 'expected true or false, got the string "yes"'),
        ("socket_mode", "1000", 'expected an octal string from "0000" to "0777", got the string "1000"'),
        ("socket_mode", "0668", 'expected an octal string from "0000" to "0777", got the string "0668"'),
    ],
)
def test_refused_in_a_flag_and_a_variable(key: str, text: str, error: str) -> None:
    assert refusal({key: text}) == f"flag --{key.replace('_', '-')}: {error}"
    assert refusal({}, {variable(key): text}) == f"environment {variable(key)}: {error}"


@every_setting
def test_a_file_holds_values_of_the_right_type_only(key: str, file: Path) -> None:
    fits = {
        **{key: {"true"} for key in SWITCHES},
        **{key: {"7"} for key in WHOLE | SIZE},
        **{key: {"1.5", "7"} for key in REAL},
    }
    fits |= {key: {'"no such thing"'} for key in PATHS}
    for value in WRONG_TYPE:
        if value not in fits.get(key, set()):
            assert file_refusal(file, f"{key} = {value}").startswith(f"{file}: {key}: expected ")


@pytest.mark.parametrize("word", ["", "a b", "é", "a\x7f", "a\n", "\0", "x" * 257])
@pytest.mark.parametrize("key", WORDS)
def test_a_word_is_printable_ascii_without_spaces(key: str, word: str, file: Path) -> None:
    assert refusal({}, {variable(key): f"good,{word}"}).startswith(f"environment {variable(key)}: {WORDS_EXPECTED}")
    text = f"{key} = {as_toml(key, ['good', word])}"
    assert file_refusal(file, text).startswith(f"{file}: {key}: {WORDS_EXPECTED}")


def test_a_word_has_no_comma_and_no_undecodable_byte(file: Path) -> None:
    expected = f'{file}: allow_host: {WORDS_EXPECTED}, got the array ["a,b"]'
    assert file_refusal(file, 'allow_host = ["a,b"]') == expected
    assert refusal({"allow_host": "a\udcff"}).endswith('got the string "a\\udcff"')


def test_there_may_be_64_words_of_256_characters(file: Path) -> None:
    listed = ["x" * 256] * 64
    assert load({"allow_host": ",".join(listed)}, {}).config.allow_host == tuple(listed)
    assert load_file(file, f"allow_host = {as_toml('allow_host', listed)}").config.allow_host == tuple(listed)
    assert refusal({}, {"UMA_ALLOW_HOST": ",".join([*listed, "x"])}).startswith("environment UMA_ALLOW_HOST: expected")
    assert file_refusal(file, f"allow_host = {as_toml('allow_host', [*listed, 'x'])}").startswith(f"{file}: allow_host")


def test_the_mode_is_not_a_bare_number(file: Path) -> None:
    expected = 'expected an octal string from "0000" to "0777", got the number 440'
    assert file_refusal(file, "socket_mode = 440") == f"{file}: socket_mode: {expected}"


def test_an_unknown_key(file: Path) -> None:
    assert file_refusal(file, "n_cxt = 1") == f"{file}: n_cxt: no such setting, did you mean n_ctx?"
    assert file_refusal(file, "max-tokens = 1") == f"{file}: max-tokens: no such setting, did you mean max_tokens?"
    assert file_refusal(file, "zzz = 1") == f"{file}: zzz: no such setting"
    assert file_refusal(file, '"a\\nb" = 1') == f'{file}: "a\\nb": no such setting'
    assert file_refusal(file, '"" = 1') == f'{file}: "": no such setting'
    assert file_refusal(file, "[qqq]\nn_ctx = 64") == f"{file}: qqq: no such setting"
    assert "config: no such setting" in file_refusal(file, "config = 'other.toml'")


def test_an_unknown_variable() -> None:
    assert refusal({}, {"UMA_N_CXT": "1"}) == "environment UMA_N_CXT: no such setting, did you mean UMA_N_CTX?"
    assert refusal({}, {"UMA_SOCKET": "x"}) == "environment UMA_SOCKET: no such setting, did you mean UMA_SOCK?"
    assert refusal({}, {"UMA_CONFG": "x"}) == "environment UMA_CONFG: no such setting, did you mean UMA_CONFIG?"
    assert refusal({}, {"UMA_": "x"}).startswith("environment UMA_: no such setting")
    assert refusal({}, {"UMA_\n": "x"}).startswith('environment "UMA_\\n": no such setting')


def test_what_is_overridden_is_checked_too(file: Path) -> None:
    assert refusal({"parallel": "2"}, {"UMA_PARALLEL": "0"}).startswith("environment UMA_PARALLEL: ")
    with pytest.raises(ConfigError, match="parallel: expected"):
        load_file(file, "parallel = 0", {"parallel": "2"})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    assert refusal({"config": str(absent)}) == f"{absent}: can't be read: No such file or directory"
    assert refusal({}, {"UMA_CONFIG": str(tmp_path)}) == f"{tmp_path}: can't be read: Is a directory"
    assert refusal({"config": "/a\nb"}) == '"/a\\nb": can\'t be read: No such file or directory'


@pytest.mark.parametrize(
    "text",
    [
        b"n_ctx",
        b"n_ctx = ",
        b"n_ctx = 1\nn_ctx = 2",
        b"socket = '\xff'",
        b"a = " + b"9" * 9999,
        b"a = " + b"[" * 9999,
    ],
    ids=["no value", "half", "twice", "not UTF-8", "too long a number", "too deep"],
)
def test_a_file_that_is_not_toml(text: bytes, file: Path) -> None:
    assert file_refusal(file, text).startswith(f"{file}: not valid TOML: ")


@given(text=st.binary() | st.text().map(str.encode))
def test_any_file_at_all_loads_or_is_refused_in_a_line(text: bytes, file: Path) -> None:
    try:
        load_file(file, text)
    except ConfigError as error:
        one_line(error)


@every_setting
@given(text=st.text(st.characters()))
def test_any_text_at_all_loads_or_is_refused_in_a_line(key: str, text: str) -> None:
    for flags, environ in (({key: text}, {}), ({}, {variable(key): text})):
        try:
            load(flags, environ)
        except ConfigError as error:
            one_line(error)


# Values that can't hold together


def test_a_conflict_says_what_to_change_and_where_the_values_came_from(file: Path) -> None:
    assert refusal({"n_ubatch": "1024"}) == (
        "n_ubatch (1024) is above n_batch (512): lower n_ubatch or raise n_batch (n_ubatch: flag, n_batch: default)"
    )
    assert refusal({"max_prompt_bytes": "256KiB"}, {"UMA_MAX_FRAME_BYTES": "1000"}) == (
        "max_prompt_bytes (256KiB) is above max_frame_bytes (1000):"
        " lower max_prompt_bytes or raise max_frame_bytes"
        " (max_prompt_bytes: flag, max_frame_bytes: environment UMA_MAX_FRAME_BYTES)"
    )
    assert refusal({"parallel": "32", "n_batch": "16", "n_ubatch": "16"}) == (
        "parallel (32) is above n_batch (16): a tick has a token of each sequence; lower parallel or raise n_batch"
        " (parallel: flag, n_batch: flag)"
    )
    assert file_refusal(file, 'flash_attn = "off"\nkv_type = "q8_0"') == (
        'kv_type "q8_0" is quantized and flash_attn is "off":'
        ' set flash_attn to "auto" or "on", or kv_type to "f16", "bf16" or "f32"'
        f" (kv_type: file {file}, flash_attn: file {file})"
    )
    assert refusal({"flash_attn": "off", "kv_type_k": "q8_0", "kv_type_v": "q4_0"}) == (
        'kv_type_v "q4_0" is quantized and flash_attn is "off":'
        ' set flash_attn to "auto" or "on", or kv_type_v to "f16", "bf16" or "f32"'
        " (kv_type_v: flag, flash_attn: flag)"
    )


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0:80", "[::]:80", "192.0.2.1:0", "[2001:db8::1]:80", "box.example:80", "127.0.0.1:80,192.0.2.1:80"],
)
def test_http_beyond_loopback_needs_keys_or_the_word_insecure(address: str) -> None:
    assert refusal({"http": address}) == (
        f"http ({address}) is not a loopback address, and api_keys is not set:"
        " make keys with umaserve keys add and set api_keys to their file, or set insecure"
        " (http: flag, api_keys: default)"
    )
    assert Config(http=address, api_keys="keys.json").http == address
    assert Config(http=address, insecure=True).http == address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.1.2.3:80", "[::1]:80", "localhost:8080"])
def test_http_on_loopback_needs_no_keys(address: str) -> None:
    assert load({"http": address}, {}).config.http == address


def test_tls_needs_both_files_and_http() -> None:
    assert refusal({"tls_cert": "c", "http": "localhost:0"}) == (
        "tls_cert is set and tls_key is not: set both or neither (tls_cert: flag, tls_key: default)"
    )
    assert refusal({"tls_key": "k", "http": "localhost:0"}) == (
        "tls_key is set and tls_cert is not: set both or neither (tls_key: flag, tls_cert: default)"
    )
    assert refusal({"tls_cert": "c", "tls_key": "k", "http_socket": "h"}) == (
        "tls_cert and tls_key are set and http is not: set http to an address, or remove the other two"
        " (tls_cert: flag, tls_key: flag, http: default)"
    )
    assert Config(tls_cert="c", tls_key="k", http="localhost:0").tls_key == "k"


def test_downloads_need_a_folder(file: Path) -> None:
    assert file_refusal(file, 'model_downloads = "4GiB"') == (
        "model_downloads is set and models_dir is not: set models_dir to a folder, or remove it"
        f" (model_downloads: file {file}, models_dir: default)"
    )


def test_saved_slots_need_kept_prompts(file: Path) -> None:
    assert file_refusal(file, 'slot_save_path = "s"') == (
        "slot_save_path is set and kv_cache is not: set kv_cache to a folder on the same file system, or remove "
        f"slot_save_path (slot_save_path: file {file}, kv_cache: default)"
    )


def test_kept_prompts_need_host_memory(file: Path) -> None:
    assert file_refusal(file, 'kv_cache = "k"\nhost_cache_bytes = 0') == (
        "kv_cache is set and host_cache_bytes is 0: raise host_cache_bytes, since all goes through host memory, or "
        f"remove kv_cache (kv_cache: file {file}, host_cache_bytes: file {file})"
    )


def test_a_voice_needs_both_files() -> None:
    assert refusal({"tts_model": "m"}) == (
        "tts_model is set and tts_mmproj is not: set both or neither (tts_model: flag, tts_mmproj: default)"
    )
    assert refusal({"tts_mmproj": "m"}) == (
        "tts_mmproj is set and tts_model is not: set both or neither (tts_mmproj: flag, tts_model: default)"
    )
    assert Config(tts_model="m", tts_mmproj="g").tts_mmproj == "g"


def test_two_protocols_cannot_share_a_socket() -> None:
    assert refusal({"http_socket": "/run/uma.sock"}) == (
        "http_socket and socket are both /run/uma.sock: choose another path for one of them"
        " (http_socket: flag, socket: default)"
    )


@pytest.mark.parametrize("address", ["0.0.0.0:10200", "tcp:[::]:10200", "tcp://box.example:10200"])
def test_wyoming_beyond_loopback_needs_the_word_insecure(address: str) -> None:
    assert refusal({"wyoming": address, "api_keys": "keys.json"}) == (
        f"wyoming ({address}) is not a loopback address, and this protocol has no keys:"
        " set insecure if everybody on that network may use it (wyoming: flag, insecure: default)"
    )
    assert Config(wyoming=address, insecure=True).wyoming == address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "tcp:localhost:10200", "tcp://[::1]:10200", "unix:/run/w.sock"])
def test_wyoming_on_this_machine_needs_nothing_else(address: str) -> None:
    assert load({"wyoming": address}, {}).config.wyoming == address


@pytest.mark.parametrize(
    "address", ["unix:", "unix:a\0b", "tcp:", "tcp:/a", "10200", "http:127.0.0.1:1", "127.0.0.1:é"]
)
def test_an_address_for_wyoming_that_is_none(address: str) -> None:
    expected = 'expected an address as HOST:PORT or unix:PATH, such as "127.0.0.1:10200", or an empty string'
    assert refusal({"wyoming": address}).startswith(f"flag --wyoming: {expected}, got ")


def test_wyoming_needs_a_socket_of_its_own() -> None:
    assert refusal({"wyoming": "unix:/run/uma.sock"}) == (
        "wyoming and socket are both /run/uma.sock: choose another path for one of them"
        " (wyoming: flag, socket: default)"
    )
    assert refusal({"wyoming": "unix:h", "http_socket": "h"}) == (
        "wyoming and http_socket are both h: choose another path for one of them (wyoming: flag, http_socket: flag)"
    )


def test_what_concerns_only_http_is_harmless_without_it() -> None:
    loaded = load({"insecure": True, "allow_host": "*", "allow_origin": "*", "cors_origin": "*", "api_keys": "k"}, {})
    assert loaded.config.http == ""


def test_equal_is_no_conflict() -> None:
    assert Config(n_batch=7, n_ubatch=7, parallel=7, max_frame_bytes=99, max_prompt_bytes=99).n_ubatch == 7


@pytest.mark.parametrize("flash_attn", CHOICE["flash_attn"])
@pytest.mark.parametrize("kv_type", CHOICE["kv_type"])
def test_only_quantized_cells_need_flash_attention(kv_type: str, flash_attn: str) -> None:
    if flash_attn == "off" and kv_type not in ("f16", "bf16", "f32"):
        with pytest.raises(Conflict):
            Config(kv_type=kv_type, flash_attn=flash_attn)
    else:
        assert Config(kv_type=kv_type, flash_attn=flash_attn).kv_type == kv_type


def test_k_and_v_are_of_one_type_unless_they_are_told_apart() -> None:
    assert Config(kv_type="q8_0").kv_types == ("q8_0", "q8_0")
    assert Config(kv_type="q8_0", kv_type_v="f16", flash_attn="off").kv_types == ("q8_0", "f16")
    assert Config(kv_type_k="q4_0", kv_type_v="bf16").kv_types == ("q4_0", "bf16")


@pytest.mark.parametrize(
    "server",
    ["http://[::1]:9000/mcp", "https://box/a;b", "ftp://box/mcp", "box:9000", "https://box/mcp?key=x", "https://"],
)
def test_tool_servers_are_urls_that_a_pages_policy_can_name(server: str) -> None:
    assert refusal({"page_tool_servers": server}).endswith(
        ", each a URL that begins with http:// or https://, a host and perhaps a port and a path, but no user and no"
        f' query, without semicolons, and whose host is no IPv6 address, got the string "{server}"'
    )


def test_a_relay_needs_the_secret_in_one_place() -> None:
    places = "(worker_secret: default, worker_secret_file: default)"
    assert refusal({"relay": "wss://box.example"}) == (
        "neither worker_secret nor worker_secret_file is set: make a secret with openssl rand -hex 32,"
        f" and give it to the relay and to its workers {places}"
    )
    assert refusal({"relay": "wss://box.example", "worker_secret_file": "f"}, {"WORKER_SECRET": "s"}) == (
        "worker_secret and worker_secret_file are both set: set only one of them"
        " (worker_secret: environment WORKER_SECRET, worker_secret_file: flag)"
    )
    # Without a relay neither concerns us: the environment may be another program's too.
    assert load({}, {"WORKER_SECRET": "s", "WORKER_SECRET_FILE": "f"}).config.relay == ()


# What is shown


def test_a_secret_is_never_shown_and_what_stands_for_it_is_refused(file: Path) -> None:
    loaded = load({}, {"WORKER_SECRET": "hunter2"})
    assert loaded.config.worker_secret == "hunter2"
    shown = render(loaded)
    assert "hunter2" not in shown + repr(loaded)
    (line,) = (line for line in shown.splitlines() if line.startswith("worker_secret ="))
    assert line.startswith('worker_secret = "…" ')
    assert line.endswith("# environment WORKER_SECRET; a secret, not shown: put it in to use this as a file")
    assert file_refusal(file, shown).startswith(f"{file}: worker_secret: expected at most 4096 printable ASCII")


@pytest.mark.parametrize("secret", ["hunter 2", "hunter2\n", "hunter2é", "hunter2" * 999])
def test_a_secret_is_not_in_its_refusal(secret: str, file: Path) -> None:
    ending = "expected at most 4096 printable ASCII characters without spaces, got something else, which is not shown"
    assert refusal({"worker_secret": secret}) == f"flag --worker-secret: {ending}"
    assert refusal({}, {"WORKER_SECRET": secret}) == f"environment WORKER_SECRET: {ending}"
    assert file_refusal(file, f"worker_secret = [{as_toml('', secret)}]") == f"{file}: worker_secret: {ending}"


def test_print_config_says_where_each_value_came_from(file: Path) -> None:
    file.write_text("parallel = 4\nmax_frame_bytes = 1000000\n")
    flags = parse("--keep-alive", "--socket-mode=600", f"--config={file}")
    lines = render(load(flags, {"UMA_SOCK": 'a "b"'})).splitlines()
    assert [line.split(" = ")[0] for line in lines] == list(DEFAULTS)
    assert {
        'socket = "a \\"b\\""            # environment UMA_SOCK',
        'socket_mode = "0600"          # flag',
        "keep_alive = true             # flag",
        "idle_timeout = 300.0          # default",
        f"max_frame_bytes = 1000000     # file {file}",
        'max_prompt_bytes = "auto"     # default',
        f"parallel = 4                  # file {file}",
    } <= set(lines)


@given(values=st.fixed_dictionaries({}, optional={key: values_of(key) for key in DEFAULTS}))
def test_print_config_fed_back_gives_the_same(values: dict[str, Any], file: Path) -> None:
    if values.get("flash_attn") == "off":
        values["kv_type"] = values["kv_type_v"] = "f16"
    values["n_batch"] = max(values.get("n_batch", 512), values.get("n_ubatch", 512), values.get("parallel", 16))
    values["insecure"] = True
    values.pop("worker_secret", None)  # which is not printed
    if values.get("relay"):
        values["worker_secret_file"] = values.get("worker_secret_file") or "f"
    if values.get("http_socket"):
        values["http_socket"] += values.get("socket", "") + "/another"
    if values.get("wyoming", "").startswith("unix:"):
        values["wyoming"] += values.get("http_socket", "") + values.get("socket", "") + "/another"
    if values.get("model_downloads"):
        values["models_dir"] = values.get("models_dir") or "m"
    if values.get("slot_save_path"):
        values["kv_cache"] = values.get("kv_cache") or "k"
    if values.get("kv_cache"):
        values["host_cache_bytes"] = values.get("host_cache_bytes") or 1
    if values.get("tls_cert") or values.get("tls_key"):
        files = {"tls_cert": "c", "tls_key": "k"}
        values |= {key: values.get(key) or name for key, name in files.items()}
        values["http"] = values.get("http") or "[::1]:0"
    if values.get("tts_model") or values.get("tts_mmproj"):
        values |= {key: values.get(key) or "m" for key in ("tts_model", "tts_mmproj")}
    if "max_frame_bytes" in values:
        values["max_frame_bytes"] = max(values["max_frame_bytes"], values.get("max_prompt_bytes", 0))
    loaded = load(parse(*(as_flag(key, value) for key, value in values.items())), {})
    again = load_file(file, render(loaded))
    assert again.config == loaded.config
    assert again.origins == dict.fromkeys(DEFAULTS, f"file {file}")


@pytest.mark.parametrize("path", ["a\x7fb", "a\nb", 'a"\\b', "é", "\U0001f600"])
def test_print_config_with_a_path_that_needs_escapes(path: str, file: Path) -> None:
    assert load_file(file, render(load({"socket": path}, {}))).config.socket == path


def test_print_config_with_a_file_name_that_would_break_the_line(tmp_path: Path) -> None:
    odd = tmp_path / "a\nb.toml"
    loaded = load_file(odd, "parallel = 4")
    assert load_file(tmp_path / "again.toml", render(loaded)).config == loaded.config


def test_help_has_every_flag_with_its_default_and_variable() -> None:
    one_line_each = functools.partial(argparse.HelpFormatter, max_help_position=100, width=1000)
    parser = argparse.ArgumentParser(formatter_class=one_line_each)
    SETTINGS.add_arguments(parser)
    lines = parser.format_help().splitlines()
    for key in DEFAULTS:
        (line,) = (line for line in lines if f"environment {variable(key)})" in line)
        assert line.strip().startswith(f"--{key.replace('_', '-')}")
        assert f"(default {SETTINGS.by_key[key].kind.render(DEFAULTS[key])}, " in line
    assert any("--config PATH" in line and "UMA_CONFIG" in line for line in lines)
    assert any("--keep-alive, --no-keep-alive" in line for line in lines)
    assert {"serving:", "http:", "limits:", "targets:", "engine:", "models:", "relay:", "logging:"} <= set(lines)


# The annotated file


def test_the_annotated_file_holds_every_setting_at_its_default_but_http() -> None:
    loaded = load({"config": str(ANNOTATED)}, {})
    assert loaded.config == replace(Config(), http="127.0.0.1:8080")
    assert loaded.origins == dict.fromkeys(DEFAULTS, f"file {ANNOTATED}")
