"""The daemon's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from umaserve.settings import link
from umaserve.settings.addresses import is_loopback, parse_addresses, parse_place
from umaserve.settings.daemon.engine import Engine
from umaserve.settings.daemon.http import Http
from umaserve.settings.daemon.limits import Limits
from umaserve.settings.daemon.logging import Logging
from umaserve.settings.daemon.models import Models
from umaserve.settings.daemon.relay import Relay
from umaserve.settings.daemon.serving import Serving
from umaserve.settings.daemon.targets import Targets
from umaserve.settings.kinds import AUTO, GIB, KIB, MIB, short_size
from umaserve.settings.sources import Conflict, Settings, both_or_neither, printable

BYTES_OF_A_TOKEN = 16
"""Bytes of text for each token of the context that a prompt may have: four times as many as English has."""


# A dataclass has the fields of its last base first.
@dataclass(frozen=True)
class Config(Logging, Relay, Models, Engine, Targets, Limits, Http, Serving):
    """Every setting. Raises `Conflict` for values that can't hold together; `Settings.load` checks each by itself."""

    def __post_init__(self) -> None:
        if self.n_ubatch > self.n_batch:
            found = f"n_ubatch ({self.n_ubatch}) is above n_batch ({self.n_batch})"
            raise Conflict(f"{found}: lower n_ubatch or raise n_batch", "n_ubatch", "n_batch")
        if self.parallel > self.n_batch:
            found = f"parallel ({self.parallel}) is above n_batch ({self.n_batch})"
            raise Conflict(
                f"{found}: a tick has a token of each sequence; lower parallel or raise n_batch", "parallel", "n_batch"
            )
        if self.max_frame_bytes != AUTO and self.max_prompt_bytes > self.max_frame_bytes:
            prompt, frame = short_size(self.max_prompt_bytes), short_size(self.max_frame_bytes)
            found = f"max_prompt_bytes ({prompt}) is above max_frame_bytes ({frame})"
            advice = "lower max_prompt_bytes or raise max_frame_bytes"
            raise Conflict(f"{found}: {advice}", "max_prompt_bytes", "max_frame_bytes")
        # llama.cpp needs it for V only.
        if self.kv_types[1].startswith("q") and self.flash_attn == "off":
            key = "kv_type_v" if self.kv_type_v else "kv_type"
            found = f'{key} "{self.kv_types[1]}" is quantized and flash_attn is "off"'
            advice = f'set flash_attn to "auto" or "on", or {key} to "f16", "bf16" or "f32"'
            raise Conflict(f"{found}: {advice}", key, "flash_attn")
        if self.kv_cache and not self.host_cache_bytes:
            found = "kv_cache is set and host_cache_bytes is 0"
            advice = "raise host_cache_bytes, since all goes through host memory, or remove kv_cache"
            raise Conflict(f"{found}: {advice}", "kv_cache", "host_cache_bytes")
        if self.slot_save_path and not self.kv_cache:
            found = "slot_save_path is set and kv_cache is not"
            advice = "set kv_cache to a folder on the same file system, or remove slot_save_path"
            raise Conflict(f"{found}: {advice}", "slot_save_path", "kv_cache")
        if self.model_downloads and not self.models_dir:
            found = "model_downloads is set and models_dir is not"
            raise Conflict(f"{found}: set models_dir to a folder, or remove it", "model_downloads", "models_dir")
        local = all(is_loopback(host) for host, _port in parse_addresses(self.http))
        if not (self.api_keys or self.insecure or local):
            found = f"http ({self.http}) is not a loopback address, and api_keys is not set"
            advice = "make keys with umaserve keys add and set api_keys to their file, or set insecure"
            raise Conflict(f"{found}: {advice}", "http", "api_keys")
        self._check_wyoming()
        both_or_neither("tls_cert", "tls_key", self.tls_cert, self.tls_key)
        if self.tls_cert and not self.http:
            found = "tls_cert and tls_key are set and http is not"
            raise Conflict(f"{found}: set http to an address, or remove the other two", "tls_cert", "tls_key", "http")
        both_or_neither("tts_model", "tts_mmproj", self.tts_model, self.tts_mmproj)
        if self.http_socket == self.socket:
            found = f"http_socket and socket are both {printable(self.socket)}"
            raise Conflict(f"{found}: choose another path for one of them", "http_socket", "socket")
        if self.relay:
            link.check_worker_secret(self.worker_secret, self.worker_secret_file)

    def sized(self, context_tokens: int) -> Self:
        """Settings with numbers for the limits that follow from the longest context, in tokens; 0: unknown."""
        prompt, frame = self.max_prompt_bytes, self.max_frame_bytes
        if prompt == AUTO:
            prompt = min(max(256 * KIB, BYTES_OF_A_TOKEN * context_tokens), GIB if frame == AUTO else frame)
        if frame == AUTO:
            frame = min(max(MIB, 2 * prompt), GIB)
        return replace(self, max_prompt_bytes=prompt, max_frame_bytes=frame)

    def _check_wyoming(self) -> None:
        match parse_place(self.wyoming) if self.wyoming else None:
            case (host, _port) if not (self.insecure or is_loopback(host)):
                found = f"wyoming ({self.wyoming}) is not a loopback address, and this protocol has no keys"
                raise Conflict(f"{found}: set insecure if everybody on that network may use it", "wyoming", "insecure")
            case str(path) if path in (self.socket, self.http_socket):
                other = "socket" if path == self.socket else "http_socket"
                found = f"wyoming and {other} are both {printable(path)}"
                raise Conflict(f"{found}: choose another path for one of them", "wyoming", other)


SETTINGS = Settings(
    Config, "UMA_", elsewhere=("UMA_RELAY_", "UMA_WORKER_"), tables=("models", "tools"), secrets=("env", "headers"),
    first=("model", "n_ctx", "parallel", "n_gpu_layers", "http", "socket", "api_keys", "slo_tbt_ms", "max_tokens",
           "host_cache_bytes"),
)  # fmt: skip
