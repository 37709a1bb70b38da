"""The settings of a worker: the relays that it dials, and the backend that answers their requests."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings import link
from umaserve.settings.kinds import GIB, KIB, MIB, choice, path, real, secret, share, size, url, whole, words
from umaserve.settings.sources import Conflict, Settings, not_both, setting


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Every setting of a worker. Raises `Conflict` for values that can't hold together."""

    relay: tuple[str, ...] = link.relay("relays to work for")
    worker_secret: str = link.worker_secret("relay")
    worker_secret_file: str = link.worker_secret_file("relay")
    name: str = link.worker_name()
    provider: str = link.provider()
    ca_file: str = link.ca_file()
    drain_timeout: float = setting(
        30.0, real("seconds", 0, 3600), "relay", "after SIGTERM, let running requests finish for this long"
    )

    backend: str = setting(
        "http://127.0.0.1:8080",
        url("http", "https"),
        "backend",
        "URL of the OpenAI-compatible server that answers the requests",
    )
    backend_key: str = setting(
        "",
        secret(),
        "backend",
        "API key for the backend; other users see a flag in the process list, a file they do not",
    )
    backend_key_file: str = setting("", path(or_empty=True), "backend", "file that contains only the backend's API key")
    models: tuple[str, ...] = setting(
        (), words(), "backend", "list of models to offer; empty: all that the backend lists at /v1/models"
    )
    refresh_interval: float = setting(
        30.0, real("seconds", 0.05, 86400), "backend", "ask the backend for its models this often"
    )
    max_concurrent: int = setting(4, whole(1, 65536), "backend", "requests that the backend gets at the same time")
    request_timeout: float = setting(
        300.0, real("seconds", 0.05, 86400), "backend", "fail a request that the backend takes longer to answer"
    )
    max_response_bytes: int = setting(64 * MIB, size(KIB, GIB), "backend", "largest response that is not streamed")

    log_level: str = setting("info", choice("debug", "info", "warning", "error"), "log", "least severe messages to log")
    log_format: str = setting("text", choice("text", "json"), "log", "format of log lines")
    access_log: float = setting(
        1.0, share(), "log", "log this share of the requests, chosen at random; 0.01: one in a hundred; 0: none"
    )

    def __post_init__(self) -> None:
        if not self.relay:
            raise Conflict("relay is empty: name the relay to work for, such as wss://relay.example.org", "relay")
        link.check_worker_secret(self.worker_secret, self.worker_secret_file)
        not_both("backend_key", "backend_key_file", self.backend_key, self.backend_key_file)


SETTINGS = Settings(
    WorkerConfig, "UMA_WORKER_",
    first=("relay", "worker_secret_file", "backend", "backend_key_file", "models", "max_concurrent", "name"),
)  # fmt: skip
