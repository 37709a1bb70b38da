"""The relay's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from umaserve.settings import link
from umaserve.settings.addresses import is_loopback, parse_address
from umaserve.settings.kinds import (
    GIB,
    KIB,
    MIB,
    Network,
    address,
    choice,
    networks,
    path,
    real,
    secret,
    share,
    size,
    switch,
    url,
    whole,
    word,
    words,
)
from umaserve.settings.sources import Conflict, Settings, both_or_neither, not_both, setting


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """Every setting of the relay. Raises `Conflict` for values that can't hold together."""

    listen: str = setting(
        "127.0.0.1:8090",
        address(),
        "serving",
        "address for clients and workers; port 0: any free port",
        env="LISTEN_ADDR",
    )
    tls_cert: str = setting(
        "", path(or_empty=True), "serving", "PEM file of the certificate and its chain; with tls_key, listen uses TLS"
    )
    tls_key: str = setting("", path(or_empty=True), "serving", "PEM file of the certificate's private key")
    max_connections: int = setting(8192, whole(1, 1048576), "serving", "connections at the same time, workers included")
    trusted_proxy: tuple[Network, ...] = setting(
        (), networks(), "serving", "addresses and networks of proxies whose X-Forwarded-For header is trusted"
    )
    idle_timeout: float = setting(
        300.0, real("seconds", 0.05, 86400), "serving", "close a connection that sends or reads nothing for this long"
    )
    drain_grace: float = setting(
        0.0,
        real("seconds", 0, 3600),
        "serving",
        "after SIGTERM, serve as before for this long, with 503 at /health/ready, so that load balancers notice",
    )
    drain_timeout: float = setting(
        30.0, real("seconds", 0, 3600), "serving", "after SIGTERM, let running requests finish for this long"
    )

    worker_secret: str = link.worker_secret("workers")
    worker_secret_file: str = link.worker_secret_file("workers")
    provider: str = setting("local", word(), "workers", "provider whose workers may register")
    heartbeat_interval: float = setting(15.0, real("seconds", 0.05, 3600), "workers", "ping each worker this often")
    heartbeat_timeout: float = setting(
        30.0, real("seconds", 0.05, 3600), "workers", "drop a worker that sends nothing for this long"
    )
    max_workers: int = setting(4096, whole(1, 65536), "workers", "workers at the same time")
    max_message_bytes: int = setting(64 * MIB, size(64 * KIB, GIB), "workers", "largest message from a worker")

    redis: str = setting(
        "",
        url("redis", "rediss", or_empty=True),
        "workers",
        "Redis or Valkey, where all relays of this provider share their load and their keys' usage; its path "
        "is the database's number, such as redis://10.0.0.5:6379/0; empty: this relay counts for itself",
    )
    redis_user: str = setting("", word(or_empty=True), "workers", "user of Redis; empty: its default one")
    redis_password_file: str = setting(
        "", path(or_empty=True), "workers", "file that contains only the password of Redis"
    )

    max_queue_len: int = setting(
        100,
        whole(1, 1048576),
        "requests",
        "requests that may wait for a worker; more are refused (429)",
        env="MAX_QUEUE_LEN",
    )
    queue_timeout: float = setting(
        30.0,
        real("seconds", 0.05, 86400),
        "requests",
        "fail a request that waits longer for a worker (504)",
        env="QUEUE_TIMEOUT_SECS",
    )
    request_timeout: float = setting(
        300.0,
        real("seconds", 0.05, 86400),
        "requests",
        "fail a request that its worker takes longer to answer (504)",
        env="REQUEST_TIMEOUT_SECS",
    )
    default_model: str = setting(
        "",
        word(or_empty=True),
        "requests",
        'model of requests that name none, or "default"; empty: the only one that there is',
    )
    route_by: str = setting(
        "prefix",
        choice("prefix", "load"),
        "requests",
        "worker of a conversation's next request; prefix: that of its last request, unless it is busier than others;"
        " load: the one with the lowest load",
    )
    max_body_bytes: int = setting(
        32 * MIB, size(KIB, GIB), "requests", "largest HTTP body or WebSocket message from a client"
    )
    max_response_bytes: int = setting(64 * MIB, size(KIB, GIB), "requests", "largest response, whole or streamed")
    tx_high_water: int = setting(
        64 * KIB,
        size(KIB, 64 * MIB),
        "requests",
        "high-water mark: have the worker hold a stream whose client leaves this much unread",
    )

    client_keys: str = setting(
        "",
        path(or_empty=True),
        "clients",
        "file of client keys (umaserve keys); with it, every client request except /health needs a key",
    )
    insecure: bool = setting(False, switch(), "clients", "allow an address other than loopback without client keys")
    admin_token: str = setting(
        "",
        secret(),
        "clients",
        "token for the API at /admin; other users see a flag in the process list, a file they do not",
    )
    admin_token_file: str = setting("", path(or_empty=True), "clients", "file that contains only the admin token")
    allow_host: tuple[str, ...] = setting(
        (),
        words(),
        "clients",
        "host names to accept in the Host header, besides loopback and the address of listen; *: any",
    )
    allow_origin: tuple[str, ...] = setting(
        (),
        words(),
        "clients",
        "web origins whose pages may connect, besides those of loopback and of this server; *: any",
    )
    cors_origin: tuple[str, ...] = setting(
        (), words(), "clients", "web origins whose pages may read replies (CORS); *: any"
    )
    header_timeout: float = setting(
        10.0, real("seconds", 0.05, 3600), "clients", "refuse a request whose head takes longer to arrive"
    )
    body_timeout: float = setting(
        30.0, real("seconds", 0.05, 3600), "clients", "refuse a request whose body takes longer to arrive"
    )
    ping_interval: float = setting(
        20.0,
        real("seconds", 0.05, 3600),
        "clients",
        "ping a client's WebSocket that is silent for this long, and close it after as long again",
    )

    log_level: str = setting("info", choice("debug", "info", "warning", "error"), "log", "least severe messages to log")
    log_format: str = setting("text", choice("text", "json"), "log", "format of log lines")
    access_log: float = setting(
        1.0, share(), "log", "log this share of the requests, chosen at random; 0.01: one in a hundred; 0: none"
    )

    otel_endpoint: str = setting(
        "",
        url("http", "https", or_empty=True),
        "log",
        "OpenTelemetry collector for traces of requests (OTLP over HTTP), such as http://127.0.0.1:4318; empty: none",
    )

    def __post_init__(self) -> None:
        both_or_neither("tls_cert", "tls_key", self.tls_cert, self.tls_key)
        link.check_worker_secret(self.worker_secret, self.worker_secret_file)
        not_both("admin_token", "admin_token_file", self.admin_token, self.admin_token_file)
        self._check_redis()
        if self.heartbeat_timeout <= self.heartbeat_interval:
            found = f"heartbeat_timeout ({self.heartbeat_timeout}) is not above heartbeat_interval"
            advice = "no worker could answer a ping in time: raise heartbeat_timeout or lower heartbeat_interval"
            raise Conflict(f"{found} ({self.heartbeat_interval}): {advice}", "heartbeat_timeout", "heartbeat_interval")
        if not (self.client_keys or self.insecure or is_loopback(parse_address(self.listen)[0])):
            found = f"listen ({self.listen}) is not a loopback address, and client_keys is not set"
            raise Conflict(f"{found}: set client_keys to a file, or set insecure", "listen", "client_keys")

    def _check_redis(self) -> None:
        if not re.fullmatch("|rediss?://[^/]+(/[0-9]{0,4})?", self.redis):
            raise Conflict(f"redis ({self.redis}): expected the number of a database as its path, such as /0", "redis")
        if self.redis_password_file and not self.redis:
            raise Conflict("redis_password_file is set and redis is not: set redis to a URL", "redis_password_file")
        if self.redis_user and not self.redis_password_file:
            advice = "name the file of this user's password"
            raise Conflict(f"redis_user is set and redis_password_file is not: {advice}", "redis_user")


SETTINGS = Settings(
    RelayConfig, "UMA_RELAY_",
    first=("listen", "worker_secret_file", "client_keys", "admin_token_file", "tls_cert", "tls_key", "trusted_proxy",
           "default_model", "max_queue_len", "queue_timeout"),
)  # fmt: skip
