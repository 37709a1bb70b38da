"""The daemon's settings."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings import link
from umaserve.settings.addresses import is_loopback, parse_address, parse_place
from umaserve.settings.kinds import (
    GIB,
    KIB,
    MIB,
    TIB,
    address,
    addresses,
    choice,
    mode,
    path,
    place,
    real,
    share,
    short_size,
    size,
    switch,
    url,
    whole,
    words,
)
from umaserve.settings.sources import Conflict, Settings, both_or_neither, printable, setting

KV_TYPES = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting. Raises `Conflict` for values that can't hold together; `Settings.load` checks each by itself."""

    socket: str = setting("/run/uma.sock", path(), "serving", "Unix socket for clients", env="UMA_SOCK")
    socket_mode: int = setting(0o660, mode(), "serving", "permissions of the socket")
    protocol: str = setting(
        "json",
        choice("json", "newline"),
        "serving",
        "on the Unix socket: length-prefixed JSON, or one prompt per line, for debugging",
    )
    keep_alive: bool = setting(
        False, switch(), "serving", "keep a connection open for another request after its answer"
    )
    idle_timeout: float = setting(
        300.0,
        real("seconds", 0.05, 86400),
        "serving",
        "close a connection that sends no complete request, or reads nothing, for this long",
    )
    drain_grace: float = setting(
        0.0,
        real("seconds", 0, 3600),
        "serving",
        "after SIGTERM, serve as before for this long, but for /health/ready, so that load balancers see it first",
    )
    drain_timeout: float = setting(
        10.0, real("seconds", 0, 3600), "serving", "after SIGTERM, let running requests finish for this long"
    )
    wyoming: str = setting(
        "",
        place(),
        "serving",
        "address for the Wyoming protocol, Home Assistant's for voices; empty: off; port 0: any free port",
    )

    http: str = setting(
        "", address(or_empty=True), "http", "address for HTTP and WebSocket; empty: off; port 0: any free port"
    )
    http_socket: str = setting(
        "",
        path(or_empty=True),
        "http",
        "Unix socket for HTTP and WebSocket, with the permissions of socket_mode; empty: none",
    )
    ollama: bool = setting(
        False, switch(), "http", "listen for HTTP on 127.0.0.1:11434 too, where Ollama's clients look; without TLS"
    )
    tls_cert: str = setting(
        "", path(or_empty=True), "http", "PEM file of the certificate and its chain; with tls_key, http uses TLS"
    )
    tls_key: str = setting("", path(or_empty=True), "http", "PEM file of the certificate's private key")
    api_keys: str = setting(
        "",
        path(or_empty=True),
        "http",
        "file of API keys (umaserve keys add); with it, every HTTP request except /health needs a key",
    )
    insecure: bool = setting(
        False, switch(), "http", "allow addresses other than loopback for http without API keys, and for wyoming"
    )
    allow_host: tuple[str, ...] = setting(
        (), words(), "http", "host names to accept in the Host header, besides loopback and the address of http; *: any"
    )
    allow_origin: tuple[str, ...] = setting(
        (), words(), "http", "web origins whose pages may connect, besides those of loopback and of this server; *: any"
    )
    cors_origin: tuple[str, ...] = setting(
        (), words(), "http", "web origins whose pages may read replies (CORS); *: any"
    )
    header_timeout: float = setting(
        10.0, real("seconds", 0.05, 3600), "http", "refuse a request whose head takes longer to arrive"
    )
    body_timeout: float = setting(
        30.0, real("seconds", 0.05, 3600), "http", "refuse a request whose body takes longer to arrive"
    )
    ping_interval: float = setting(
        20.0,
        real("seconds", 0.05, 3600),
        "http",
        "ping a WebSocket that is silent for this long, and close it after as long again",
    )
    resume_window: float = setting(
        60.0,
        real("seconds", 0, 3600),
        "http",
        "keep the generation of a lost WebSocket for this long, so that its client can resume it; 0: off",
    )
    resume_bytes: int = setting(16 * MIB, size(0, GIB), "http", "memory for all generations of lost WebSockets")
    resume_file: str = setting(
        "",
        path(or_empty=True),
        "http",
        "file for those that outlast drain_timeout, which clients can then resume at the next daemon; empty: none",
    )
    feedback_log: str = setting(
        "", path(or_empty=True), "http", "file to which clients' feedback is appended, as JSON lines; empty: off"
    )
    recordings: str = setting(
        "", path(or_empty=True), "http", "folder in which the conversations of /ws/chat are recorded; empty: off"
    )
    recordings_bytes: int = setting(
        GIB, size(MIB, TIB), "http", "disk space for all complete recordings; the oldest are deleted first"
    )
    recordings_age: float = setting(30.0, real("days", 0, 36500), "http", "delete recordings that are older; 0: never")
    ref_audio: str = setting(
        "",
        path(or_empty=True),
        "http",
        "sound file of the default voice to clone, which clients can fetch; empty: none",
    )
    page: bool = setting(True, switch(), "http", "serve a page for browsers at /, to talk to the models")
    slots_prompts: bool = setting(False, switch(), "http", "show the prompts of all clients in /slots")
    llama_metrics: bool = setting(False, switch(), "http", "add metrics with llama-server's names to /metrics")
    vllm_metrics: bool = setting(
        False, switch(), "http", "add metrics with vLLM's names to /metrics, for gateways and dashboards"
    )
    debug_echo: bool = setting(False, switch(), "http", "serve /debug/echo, for conformance tests")

    max_sessions: int = setting(1024, whole(1, 65536), "limits", "connections at the same time")
    max_frame_bytes: int = setting(
        MIB, size(64, GIB), "limits", "largest frame, line, HTTP body or WebSocket message from a client"
    )
    max_chat_bytes: int = setting(
        128 * MIB,
        size(64, GIB),
        "limits",
        "largest message of /ws/chat and /generate, and body of a path that takes media, such as /v1/chat/completions",
    )
    max_prompt_bytes: int = setting(256 * KIB, size(1, GIB), "limits", "largest prompt, in bytes of UTF-8")
    max_tokens: int = setting(
        0, whole(0, 1048576), "limits", "longest answer in tokens; longer ones are cut; 0: no limit but the context"
    )
    reasoning_budget: int = setting(
        -1,
        whole(-1, 1048576),
        "limits",
        "tokens of thought after which thoughts are closed by force; 0: at once; -1: no limit",
    )
    tx_high_water: int = setting(
        64 * KIB,
        size(KIB, 64 * MIB),
        "limits",
        "high-water mark: hold a stream whose client leaves this much output unread",
    )
    max_queue: int = setting(256, whole(1, 65536), "limits", "requests that may wait for a slot; more are refused")
    request_timeout: float = setting(
        600.0,
        real("seconds", 0, 86400),
        "limits",
        "fail a request that takes longer, waiting included, pauses not; 0: no limit",
    )
    rate_requests: float = setting(
        0.0,
        real("requests/minute", 0, 10**9),
        "limits",
        "requests of each tenant (API key; without keys, peer); 0: no limit",
    )
    rate_tokens: float = setting(
        0.0, real("tokens/minute", 0, 10**9), "limits", "tokens generated for each tenant; 0: no limit"
    )
    memory_reserve: int = setting(
        64 * MIB, size(0, TIB), "limits", "refuse requests while less memory is free; 0: never"
    )
    host_cache_bytes: int = setting(
        256 * MIB,
        size(0, TIB),
        "limits",
        "host memory for computed prompts that the KV cache has no room for; 0: off, and without a GPU little is kept",
    )
    kv_cache: str = setting(
        "",
        path(or_empty=True),
        "limits",
        "folder for computed prompts, which then survive a restart of the daemon; empty: none",
    )
    kv_cache_bytes: int = setting(
        8 * GIB, size(MIB, TIB), "limits", "disk space for all of them; those used longest ago are deleted first"
    )
    media_cache_bytes: int = setting(
        256 * MIB, size(0, TIB), "limits", "host memory for encoded images and sounds, for the next turn; 0: off"
    )
    shared_prefix_cache: bool = setting(
        False,
        switch(),
        "limits",
        "let tenants reuse each other's cached prefixes; the time to first token then reveals what others asked",
    )
    content_filter: str = setting(
        "",
        path(or_empty=True),
        "limits",
        "file of regular expressions, one per line, that neither prompts nor answers may match; empty: none",
    )

    slo_ttft_ms: float = setting(
        1000.0, real("ms", 1, 3600000), "targets", "target for the time to first token; a request may set another"
    )
    slo_tbt_ms: float = setting(
        80.0, real("ms", 1, 3600000), "targets", "target for the time between tokens; a request may set another"
    )

    model: str = setting(
        "", path(or_empty=True), "engine", "GGUF file of the model; empty: the default model, SmolLM2-135M-Instruct"
    )
    weights: str = setting(
        "fast",
        choice("fast", "as-is", "converted", "mapped"),
        "engine",
        "fast: measure at the first start whether this processor computes them faster from a copy converted to Q8_0 "
        "(Q4_1, Q5_1) or not repacked (K-quants), and load what proves faster; as-is: the file, as llama.cpp does by "
        "default; converted: load such a copy without measuring; mapped: do not repack",
    )
    weights_cache: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "folder for these copies; empty: weights in $CACHE_DIRECTORY (systemd), else umaserve/weights in "
        "$XDG_CACHE_HOME or ~/.cache",
    )
    mmproj: str = setting(
        "", path(or_empty=True), "engine", "GGUF file of the model's projector, for images and sounds; empty: none"
    )
    chat_template: str = setting(
        "", path(or_empty=True), "engine", "file of a chat template (jinja2) to use instead of the model's own"
    )
    trust_content: bool = setting(
        False,
        switch(),
        "engine",
        "take names of control tokens in what a conversation's messages say, such as <|im_end|>, for control tokens",
    )
    n_ctx: int = setting(
        16384,
        whole(64, 4194304, or_zero=True),
        "engine",
        "KV cells for all sequences together; 0: the model's training length",
    )
    parallel: int = setting(16, whole(1, 256), "engine", "sequences decoded at the same time")
    n_batch: int = setting(512, whole(1, 65536), "engine", "most tokens in one decode")
    n_ubatch: int = setting(512, whole(1, 65536), "engine", "most tokens in one pass of a decode")
    threads: int = setting(
        0, whole(0, 512), "engine", "most threads for decoding; 0: the cores that this process may use"
    )
    threads_batch: int = setting(
        0, whole(0, 512), "engine", "most threads for decodes of several tokens, such as prompts; 0: as threads"
    )
    n_gpu_layers: int = setting(
        -1, whole(-1, 10000), "engine", "layers to offload to a GPU; -1: all that this build of llama.cpp can"
    )
    flash_attn: str = setting("auto", choice("auto", "on", "off"), "engine", "flash attention")
    kv_type: str = setting(
        "f16",
        choice(*KV_TYPES),
        "engine",
        "type of the KV cells; the q types take less memory and need flash attention",
    )
    kv_type_k: str = setting(
        "", choice(*KV_TYPES, or_empty=True), "engine", "type of their K, where it is another; empty: as kv_type"
    )
    kv_type_v: str = setting(
        "", choice(*KV_TYPES, or_empty=True), "engine", "type of their V, where it is another; empty: as kv_type"
    )
    rpc: tuple[str, ...] = setting(
        (), addresses(), "engine", "RPC servers of llama.cpp, HOST:PORT each, that hold a part of the model"
    )
    lora: tuple[str, ...] = setting(
        (), words(), "engine", "LoRA adapters, as GGUF files; NAME=FILE gives one a name for requests to choose"
    )
    engine_timeout: float = setting(
        30.0,
        real("seconds", 0, 86400),
        "engine",
        "end an engine whose tick takes this long, and 20 times what was predicted, and start another; 0: never",
    )
    speculation: bool = setting(
        True, switch(), "engine", "draft tokens where the text repeats itself, as long as that is faster"
    )
    draft_model: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "GGUF file of a small model with the same vocabulary, for draft tokens; empty: none",
    )
    tts_model: str = setting(
        "",
        path(or_empty=True),
        "engine",
        "GGUF file of a Pocket TTS or Qwen3-TTS model for speech; empty: hibari-tts, if installed",
    )
    tts_mmproj: str = setting("", path(or_empty=True), "engine", "GGUF file of the projector (mmproj) of tts_model")
    pooling: str = setting(
        "model",
        choice("model", "mean", "cls", "last"),
        "engine",
        "how /v1/embeddings combines the vectors of a text's tokens; model: as the model says",
    )

    models_dir: str = setting(
        "",
        path(or_empty=True),
        "models",
        "folder of more models: each GGUF file by its name, with its projector (mmproj) beside it; empty: none",
    )
    strict_models: bool = setting(
        False, switch(), "models", "refuse requests that name a model which isn't there, instead of using the default"
    )
    idle_unload: float = setting(
        0.0, real("seconds", 0, 2592000), "models", "unload a model that nobody has used for this long; 0: never"
    )

    relay: tuple[str, ...] = link.relay("relays to register the model at")
    worker_secret: str = link.worker_secret("relay")
    worker_secret_file: str = link.worker_secret_file("relay")
    worker_name: str = link.worker_name()
    # These variables are umaserve worker's too; those that begin with UMA_RELAY_ are the relay's alone.
    relay_provider: str = link.provider(env="UMA_WORKER_PROVIDER")
    relay_ca_file: str = link.ca_file(env="UMA_WORKER_CA_FILE")

    log_level: str = setting(
        "info", choice("debug", "info", "warning", "error"), "logging", "least severe messages to log"
    )
    log_format: str = setting("text", choice("text", "json"), "logging", "format of log lines")
    access_log: float = setting(
        1.0, share(), "logging", "log this share of the requests, chosen at random; 0.01: one in a hundred; 0: none"
    )
    otel_endpoint: str = setting(
        "",
        url("http", "https", or_empty=True),
        "logging",
        "OpenTelemetry collector for traces of requests (OTLP over HTTP), such as http://127.0.0.1:4318; empty: none",
    )

    @property
    def kv_types(self) -> tuple[str, str]:
        """The types of the KV cells' K and V."""
        return self.kv_type_k or self.kv_type, self.kv_type_v or self.kv_type

    def __post_init__(self) -> None:
        if self.n_ubatch > self.n_batch:
            found = f"n_ubatch ({self.n_ubatch}) is above n_batch ({self.n_batch})"
            raise Conflict(f"{found}: lower n_ubatch or raise n_batch", "n_ubatch", "n_batch")
        if self.parallel > self.n_batch:
            found = f"parallel ({self.parallel}) is above n_batch ({self.n_batch})"
            raise Conflict(
                f"{found}: a tick has a token of each sequence; lower parallel or raise n_batch", "parallel", "n_batch"
            )
        if self.max_prompt_bytes > self.max_frame_bytes:
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
        if self.http and not (self.api_keys or self.insecure or is_loopback(parse_address(self.http)[0])):
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
    Config, "UMA_", elsewhere=("UMA_RELAY_", "UMA_WORKER_"), tables=("models",),
    first=("model", "n_ctx", "parallel", "n_gpu_layers", "http", "socket", "api_keys", "slo_tbt_ms", "max_tokens",
           "host_cache_bytes"),
)  # fmt: skip
