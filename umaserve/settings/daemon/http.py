"""Settings of the daemon: HTTP and WebSocket: addresses, keys, who may connect, and what is kept for clients."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings.kinds import GIB, MIB, TIB, address_list, path, real, size, sources, switch, words
from umaserve.settings.sources import setting


@dataclass(frozen=True)
class Http:
    """HTTP and WebSocket: addresses, keys, who may connect, and what is kept for clients."""

    http: str = setting(
        "",
        address_list(),
        "http",
        "addresses for HTTP and WebSocket; empty: off; port 0: any free port",
        about='The address for HTTP and WebSocket, as HOST:PORT; an IPv6 address is in brackets, "[::1]:8080". Several '
        "have commas between them. Port 0: any free port. Empty, the default: off. Addresses other than loopback need"
        " api_keys, or insecure. "
        "If neither this nor http_socket is set, and no service manager starts the daemon, it takes "
        "127.0.0.1:8080 where that is free.",
    )
    http_socket: str = setting(
        "",
        path(or_empty=True),
        "http",
        "Unix socket for HTTP and WebSocket, with the permissions of socket_mode; empty: none",
        about="A Unix socket for HTTP and WebSocket, for example for a proxy on this machine. Its permissions are "
        "socket_mode. Empty: none.",
    )
    ollama: bool = setting(
        False,
        switch(),
        "http",
        "listen for HTTP on 127.0.0.1:11434 too, where Ollama's clients look; without TLS",
        about="Whether to listen for HTTP on 127.0.0.1:11434 too, where Ollama's clients look for a server. All paths "
        "are served there, without TLS.",
    )
    tls_cert: str = setting(
        "",
        path(or_empty=True),
        "http",
        "PEM file of the certificate and its chain; with tls_key, http uses TLS",
        about="PEM file of the certificate, with the chain that leads to it. With tls_cert and tls_key, http accepts "
        "only TLS.",
    )
    tls_key: str = setting(
        "",
        path(or_empty=True),
        "http",
        "PEM file of the certificate's private key",
        about="PEM file of the certificate's private key. Both files must be given, or neither.",
    )
    api_keys: str = setting(
        "",
        path(or_empty=True),
        "http",
        "file of API keys (umaserve keys add); with it, every HTTP request except /health needs a key",
        about='File of API keys. "umaserve keys add NAME" makes the file and each key, "umaserve keys revoke NAME" '
        "makes a key invalid; a running daemon follows within about a second. With this file, every HTTP "
        "request except /health needs a key, and gets only what that grants: its class, its rates, its models. "
        "Empty: no keys are needed.",
    )
    insecure: bool = setting(
        False,
        switch(),
        "http",
        "allow addresses other than loopback for http without API keys, and for wyoming",
        about="Whether http may listen on an address other than loopback without api_keys, and wyoming on one at all. "
        "Whoever reaches the port may then use the model.",
    )
    allow_host: tuple[str, ...] = setting(
        (),
        words(),
        "http",
        "host names to accept in the Host header, besides loopback and the address of http; *: any",
        about="Host names, at most 64, to accept in the Host header, besides those of loopback and the address of "
        'http; for example ["box.example.org"]. Rejecting all others protects against DNS rebinding: web pages '
        'cannot reach the daemon under a name of their own. ["*"]: any.',
    )
    allow_origin: tuple[str, ...] = setting(
        (),
        words(),
        "http",
        "web origins whose pages may connect, besides those of loopback and of this server; *: any",
        about="Web origins, at most 64, whose pages may connect, besides those of loopback and of the daemon itself; "
        'for example ["https://example.org"]. ["*"]: any.',
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        words(),
        "http",
        "web origins whose pages may read replies (CORS); *: any",
        about='Web origins, at most 64, whose pages may read replies (CORS), for example ["https://example.org"]. '
        '["*"]: any.',
    )
    header_timeout: float = setting(
        10.0,
        real("seconds", 0.05, 3600),
        "http",
        "refuse a request whose head takes longer to arrive",
        about="Seconds, 0.05 to 3600, in which the head of an HTTP request must arrive.",
    )
    body_timeout: float = setting(
        30.0,
        real("seconds", 0.05, 3600),
        "http",
        "refuse a request whose body takes longer to arrive",
        about="Seconds, 0.05 to 3600, in which the body of an HTTP request must arrive. The 128 MiB of max_chat_bytes "
        "in 30 s are 36 Mbit/s; clients on slower lines need more time, or must send less.",
    )
    ping_interval: float = setting(
        20.0,
        real("seconds", 0.05, 3600),
        "http",
        "ping a WebSocket that is silent for this long, and close it after as long again",
        about="Seconds, 0.05 to 3600, after which a silent WebSocket gets a ping. It is closed if it stays silent for "
        "as long again.",
    )
    resume_window: float = setting(
        60.0,
        real("seconds", 0, 3600),
        "http",
        "keep the generation of a lost WebSocket for this long, so that its client can resume it; 0: off",
        about="Seconds, 0 to 3600, for which the generation of a lost WebSocket is kept, so that its client can "
        "resume it; and for which the stream of a request with the header x-conversation-id is kept after its end, for "
        "/v1/stream. 0: off.",
    )
    resume_bytes: int = setting(
        16 * MIB,
        size(0, GIB),
        "http",
        "memory for all generations of lost WebSockets",
        about="Memory for all these generations together, 0 to 1GiB, and as much for all these streams.",
    )
    resume_file: str = setting(
        "",
        path(or_empty=True),
        "http",
        "file for generations that outlast drain_timeout, which clients can then resume at the next daemon; empty:"
        " none",
        about="File for generations that outlast drain_timeout, and for those of lost WebSockets, at the daemon's "
        "end: their clients can resume them at the next daemon, which deletes it. No larger than resume_bytes. "
        "Empty: they end with the daemon. conf/umaserve.service sets it.",
    )
    feedback_log: str = setting(
        "",
        path(or_empty=True),
        "http",
        "file to which clients' feedback is appended, as JSON lines; empty: off",
        about="File to which clients' feedback is appended, one line of JSON each. Empty: feedback is not kept.",
    )
    recordings: str = setting(
        "",
        path(or_empty=True),
        "http",
        "folder in which the conversations of /ws/chat are recorded; empty: off",
        about="Folder in which the conversations of /ws/chat are recorded: the request with all media, the answer, "
        "and the speech. Only the daemon's user can read them. The folder is made if it is missing. Empty: off.",
    )
    recordings_bytes: int = setting(
        GIB,
        size(MIB, TIB),
        "http",
        "disk space for all complete recordings; the oldest are deleted first",
        about="Disk space for all complete recordings, 1MiB to 1TiB; the oldest are deleted first. Incomplete ones "
        "may take as much again.",
    )
    recordings_age: float = setting(
        30.0,
        real("days", 0, 36500),
        "http",
        "delete recordings that are older; 0: never",
        about="Days, 0 to 36500, after which a recording is deleted. 0: never.",
    )
    store: str = setting(
        "",
        path(or_empty=True),
        "http",
        "folder that keeps responses and conversations for clients; empty: in memory, for an hour",
        about="Folder in which the responses and conversations of OpenAI's API that clients may come back for outlive "
        "the daemon, in a file that only the daemon's user can read. It is not encrypted: that is the disk's matter. "
        "The folder is made if it is missing. Files that clients send (/v1/files) are kept in it too. Empty: responses "
        "and conversations are in memory only, for an hour, and there are no files.",
    )
    store_bytes: int = setting(
        128 * MIB,
        size(8 * MIB, 16 * GIB),
        "http",
        "memory for stored responses and conversations, and their size in store; the oldest are deleted first",
        about="Memory for stored responses and conversations, 8MiB to 16GiB, and their size in the folder store: half "
        "of it for responses, half for conversations. A key or an address has up to a quarter. The oldest are deleted "
        "first. Files of clients may take as much again of the disk.",
    )
    store_age: float = setting(
        30.0,
        real("days", 0, 36500),
        "http",
        "delete what is in store once it has not changed for so long; 0: never",
        about="Days, 0 to 36500, after which a response, or a conversation that has not changed, is deleted from the "
        "folder store. 0: never.",
    )
    ref_audio: str = setting(
        "",
        path(or_empty=True),
        "http",
        "sound file of the default voice to clone, which clients can fetch; empty: none",
        about="Sound file of a voice: the default for voice cloning, whose first 60 seconds clients can fetch from "
        "/api/default_ref_audio. A WAV file, for example, or raw mono float32 of 16 kHz as .f32 or .pcm. Only "
        "voices of tts_model can clone. Empty: none.",
    )
    page: bool = setting(
        True,
        switch(),
        "http",
        "serve a page for browsers at /, to chat with the models",
        about="Whether browsers get a page at /, to chat with the models. It needs no key, but asks for one where the "
        "API does.",
    )
    page_tool_servers: tuple[str, ...] = setting(
        (),
        sources("http", "https"),
        "http",
        "MCP servers whose tools the page may use, besides this daemon's own; with a slash at the end, all below it",
        about="URLs of MCP servers, at most 64, whose tools people may let a model call in the page, besides the "
        'daemon\'s own /mcp; for example ["https://tools.example.org/mcp"]. The page connects to no other ones. A URL '
        "that ends with a slash also allows those below it, which people add by themselves. A server has to let the "
        "page's origin read its replies (CORS). A browser takes no IPv6 address there: name the host.",
    )
    slots_prompts: bool = setting(
        False,
        switch(),
        "http",
        "show the prompts of all clients in /slots",
        about="Show the prompts of all clients in /slots.",
    )
    llama_metrics: bool = setting(
        False,
        switch(),
        "http",
        "add metrics with llama-server's names to /metrics",
        about="Add metrics with llama-server's names (llamacpp:...) to /metrics.",
    )
    vllm_metrics: bool = setting(
        False,
        switch(),
        "http",
        "add metrics with vLLM's names to /metrics, for gateways and dashboards",
        about="Add metrics with vLLM's names (vllm:...) to /metrics, by the label model_name, for gateways and "
        "dashboards made for them.",
    )
    debug_echo: bool = setting(
        False,
        switch(),
        "http",
        "serve /debug/echo, for conformance tests",
        about="Whether to serve /debug/echo, which sends back what it receives, for conformance tests.",
    )
