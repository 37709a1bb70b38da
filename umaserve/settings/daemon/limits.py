"""Settings of the daemon: what clients may send, get and take, and memory and disk space for it."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings.kinds import AUTO, GIB, KIB, MIB, TIB, or_auto, path, real, size, switch, whole
from umaserve.settings.sources import setting


@dataclass(frozen=True)
class Limits:
    """What clients may send, get and take, and memory and disk space for it."""

    max_sessions: int = setting(
        1024,
        whole(1, 65536),
        "limits",
        "connections at the same time",
        about="Connections at the same time, 1 to 65536. Each takes a file descriptor, so the process's limit for "
        "those must be higher. The network gets seven eighths of them, so that it cannot lock out the Unix "
        "sockets.",
    )
    max_frame_bytes: int = setting(
        AUTO,
        or_auto(size(64, GIB)),
        "limits",
        "largest frame, line, HTTP body or WebSocket message from a client; auto: 1MiB, or twice max_prompt_bytes",
        about="Largest frame, line, HTTP body or WebSocket message from a client, 64 bytes to 1GiB, except those of "
        "max_chat_bytes. These two limit the memory that one client can take before its request is understood.\n"
        '"auto": 1MiB, or twice max_prompt_bytes where that is more.',
    )
    max_chat_bytes: int = setting(
        128 * MIB,
        size(64, GIB),
        "limits",
        "largest message of /ws/chat and /generate, and body of a path that takes media, such as /v1/chat/completions",
        about="Largest message of /ws/chat and /generate, body of a path that takes media, such as "
        "/v1/chat/completions, and recording of a Wyoming client, 64 bytes to 1GiB. A client that sends its API "
        "key only inside the message is limited to max_frame_bytes. All large messages together may take about "
        "twice this size and one message more; further clients wait before theirs are read.",
    )
    max_prompt_bytes: int = setting(
        AUTO,
        or_auto(size(1, GIB)),
        "limits",
        "largest prompt, in bytes of UTF-8; auto: 256KiB, or 16 bytes for each token of the longest context",
        about="Largest prompt, 1 byte to 1GiB of UTF-8. At most max_frame_bytes, since a prompt is part of a frame.\n"
        '"auto": 256KiB, or 16 bytes for each token of the context where that is more, of several models the longest; '
        "at most max_frame_bytes where that is set.",
    )
    max_tokens: int = setting(
        0,
        whole(0, 1048576),
        "limits",
        "longest answer in tokens; longer ones are cut; 0: no limit but the context",
        about="Longest answer in tokens, 1 to 1048576; longer ones are cut. Over the Unix socket it is also the "
        "default of requests that do not set max_tokens. 0: no limit but the context.",
    )
    reasoning_budget: int = setting(
        -1,
        whole(-1, 1048576),
        "limits",
        "tokens of thought after which thoughts are closed by force; 0: at once; -1: no limit",
        about="Tokens of thought, -1 to 1048576, after which a model's thoughts in a conversation are closed by "
        "force, so that it answers. 0: at once; -1: no limit. Requests may set their own (reasoning_budget).",
    )
    tx_high_water: int = setting(
        64 * KIB,
        size(KIB, 64 * MIB),
        "limits",
        "high-water mark: hold a stream whose client leaves this much output unread",
        about="High-water mark, 1KiB to 64MiB: a stream whose client leaves this much output unread gets no further "
        "tokens until the client has read some of it. Lower it to save memory with many slow clients.",
    )
    max_queue: int = setting(
        256,
        whole(1, 65536),
        "limits",
        "requests that may wait for a slot; more are refused",
        about="Requests that may wait for a slot, 1 to 65536. More are refused at once.",
    )
    request_timeout: float = setting(
        600.0,
        real("seconds", 0, 86400),
        "limits",
        "fail a request that takes longer, waiting included, pauses not; 0: no limit",
        about="Seconds, 0 to 86400, that a request may take, waiting included and pauses not; then it fails. 0: no "
        "limit.",
    )
    rate_requests: float = setting(
        0.0,
        real("requests/minute", 0, 10**9),
        "limits",
        "requests of each tenant (API key; without keys, peer); 0: no limit",
        about="Requests per minute, 0 to 1000000000, for each tenant: an API key or, without keys, a peer. 0: no "
        "limit.",
    )
    rate_tokens: float = setting(
        0.0,
        real("tokens/minute", 0, 10**9),
        "limits",
        "tokens generated for each tenant; 0: no limit",
        about="Generated tokens per minute, 0 to 1000000000, for each tenant. 0: no limit.",
    )
    memory_reserve: int = setting(
        64 * MIB,
        size(0, TIB),
        "limits",
        "refuse requests while less memory is free; 0: never",
        about="Requests are refused while the machine has less free memory than this, 0 to 1024GiB. 0: never.",
    )
    host_cache_bytes: int = setting(
        AUTO,
        or_auto(size(0, TIB)),
        "limits",
        "host memory for computed prompts that the KV cache has no room for; 0: off, and without a GPU little is kept; "
        "auto: 256MiB, or two prompts as long as the context",
        about="Host memory for computed prompts that the KV cache has no room for, 0 (off) to 1TiB. A prompt that "
        "begins like one of them loads it instead of computing it, which is some hundred times faster; so does "
        "preempted background work. The memory is taken when it is needed, and given back when the machine runs "
        "short. Without it, little of what ended requests have computed is kept where the processor computes: "
        "the attention of every stream there reads all cells in use.\n"
        '"auto": 256MiB, or as much as two prompts that fill the context, if that is more; at most a quarter of the '
        "memory that is available at the start.",
    )
    kv_cache: str = setting(
        "",
        path(or_empty=True),
        "limits",
        "folder for computed prompts, which then survive a restart of the daemon; empty: none",
        about="Folder on disk for computed prompts and answers, so that they survive a restart: a prompt that begins "
        "like one of them reads it instead of computing it, where that is faster. They are clients' texts: the "
        "folder is made for the daemon's user alone, and not used where others may write to it. Daemons of this "
        "user may share it. Needs host_cache_bytes. With conf/umaserve.service: kv_cache = "
        '"/var/cache/umaserve/kv". Empty: none.',
    )
    kv_cache_bytes: int = setting(
        8 * GIB,
        size(MIB, TIB),
        "limits",
        "disk space for all of them; those used longest ago are deleted first",
        about="Disk space for all of them, 1MiB to 1TiB; those that were used longest ago are deleted first.",
    )
    slot_save_path: str = setting(
        "",
        path(or_empty=True),
        "limits",
        "folder for what operators save of slots, as with llama-server (POST /slots/{id}?action=save); empty: off",
        about="Folder for files that operators save of slots, and restore, as with llama-server: POST "
        "/slots/{id}?action=save and restore. They are links to files of kv_cache, which they need, on the same file "
        "system: what has a name stays when kv_cache is full. As many bytes as kv_cache_bytes; nothing deletes them "
        "but you. Empty: neither is served.",
    )
    media_cache_bytes: int = setting(
        256 * MIB,
        size(0, TIB),
        "limits",
        "host memory for encoded images and sounds, for the next turn; 0: off",
        about="Host memory for encoded images and sounds, 0 (off) to 1TiB: the next turn of a conversation sends them "
        "again, and they need not be encoded again.",
    )
    shared_prefix_cache: bool = setting(
        False,
        switch(),
        "limits",
        "let tenants reuse each other's cached prefixes; the time to first token then reveals prompts of others",
        about="true: a prompt may begin with cached prefix tokens of any tenant. false: only with those of its own "
        "tenant, since the time to first token would reveal the prompts of others to a client that tries likely ones.",
    )
    content_filter: str = setting(
        "",
        path(or_empty=True),
        "limits",
        "file of regular expressions, one per line, that neither prompts nor answers may match; empty: none",
        about="File of regular expressions, one per line, that neither prompts nor answers may match. Empty: none.",
    )

    @property
    def least_host_cache_bytes(self) -> int:
        """What host_cache_bytes is at least, before the model is loaded by which "auto" is chosen."""
        return 256 * MIB if self.host_cache_bytes == AUTO else self.host_cache_bytes
