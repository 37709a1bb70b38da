"""What ``umaserve doctor`` looks at: the box, llama.cpp's build, the sockets, the unit, and the models."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from umaserve.core.errors import ConfigError, ModelError
from umaserve.engine import context_size, needs
from umaserve.net.tls import server_context
from umaserve.settings import gguf_header
from umaserve.settings.addresses import parse_addresses, parse_place
from umaserve.settings.daemon import Config
from umaserve.settings.model_files import default_model
from umaserve.settings.models import ModelSpec
from umaserve.settings.sources import printable
from umaserve.system import clock, devices, ports, program, systemd
from umaserve.system.cores import instructions, processor, usable_cores
from umaserve.system.descriptors import OWN_DESCRIPTORS, most_descriptors
from umaserve.system.memory import UNKNOWN_BYTES

OLLAMA = ("127.0.0.1", 11434)
MAX_S = 60.0
"""Time for llama.cpp to read a model's header, in seconds, at most."""
UNIT = "umaserve.service"
CHECKUP = "umaserve.engine.checkup"

_KERNEL_NAMES: Mapping[str, str] = {
    "AVX2": "avx2",
    "FMA": "fma",
    "F16C": "f16c",
    "BMI2": "bmi2",
    "AVX512": "avx512bw",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
}
"""Sets of instructions that make llama.cpp faster: its names, and the kernel's."""
_BUILD_AGAIN = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
_MODEL_SETTINGS = (
    *("model", "n_ctx", "n_batch", "n_ubatch", "parallel", "kv_type", "kv_type_k", "kv_type_v", "flash_attn"),
    "chat_template",
)

Level = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of ``umaserve doctor``. ``level``: ok; note: it works, and could be better; wrong: something won't work,
    or far too slowly."""

    level: Level
    about: str
    found: str
    advice: str = ""
    """What to do; empty where there is nothing to do."""


def of_box(config: Config) -> Iterator[Finding]:
    """Findings on the box, whatever the model."""
    yield _cores()
    yield _pages()
    yield _clock()
    yield _descriptors(config)
    if config.kv_cache:
        yield _kept(config.kv_cache, config.kv_cache_bytes)
    yield from _unit(config)


def of_build(wanted: Callable[[], bool]) -> Iterator[Finding]:
    """Findings on what llama.cpp's build can do on this box; one that can't run at all ends only the program that tries
    it."""
    try:
        build = checked(None, wanted)["build"]
    except (program.ProgramError, OSError) as error:
        advice = f"it was built for another processor, or is incomplete; rebuild it on this machine: {_BUILD_AGAIN}"
        yield Finding("wrong", "build", f"llama.cpp doesn't run here: {error}", advice)
    else:
        yield compared(build, instructions())
        yield beside_gpus(build, devices.gpus())


def compared(build: Mapping[str, Any], had: Collection[str]) -> Finding:
    """llama.cpp's ``build`` (``engine.checkup.Build``) on a processor that has these instructions."""
    features = set(build["features"])
    unused = [name for name, known in _KERNEL_NAMES.items() if known in had and name not in features]
    if unused:
        found = f"llama.cpp was built without {', '.join(unused)}, which this processor has"
        return Finding("wrong", "build", found, f"build it for this processor: {_BUILD_AGAIN}")
    if not build["repacks"]:
        found = "llama.cpp was built by a compiler that breaks AMX, so weights are not repacked for it"
        advice = f"build it with GCC 12.4, 13.3, 14 or clang: CC=gcc-14 CXX=g++-14 {_BUILD_AGAIN}"
        return Finding("wrong", "build", found, advice)
    if "avx512_fp16" in had:
        found = "GCC's code for AVX512-FP16 takes twice as long for some models' attention"
        flag = "-mno-avx512fp16"
        advice = "unless scripts/venv or scripts/wheels built llama.cpp, which leave it out: "
        advice += f'CMAKE_ARGS="-DCMAKE_C_FLAGS={flag} -DCMAKE_CXX_FLAGS={flag}" {_BUILD_AGAIN}'
        return Finding("note", "build", found, advice)
    used = ", ".join(name for name in build["features"] if name in _KERNEL_NAMES) or "no special instructions"
    return Finding("ok", "build", f"llama.cpp uses {used}")


def beside_gpus(build: Mapping[str, Any], gpus: Sequence[str]) -> Finding:
    """llama.cpp's ``build`` on a box with these GPUs."""
    if gpus and not build["uses_gpus"]:
        kind = "CUDA" if "nvidia" in gpus[0] else "HIP"
        found = f"{', '.join(gpus)}: there is a GPU, which this build of llama.cpp can't use"
        return Finding("wrong", "GPU", found, f"build it for GPUs: CMAKE_ARGS=-DGGML_{kind}=on {_BUILD_AGAIN}")
    if gpus:
        return Finding("ok", "GPU", ", ".join(gpus))
    return Finding("ok", "GPU", "none: the CPU computes")


def of_sockets(config: Config) -> Iterator[Finding]:
    """Whether the daemon may listen where the settings say."""
    for path in filter(None, (config.socket, config.http_socket)):
        yield _unix_socket(path)
    addresses = parse_addresses(config.http)
    addresses += [OLLAMA] if config.ollama else []
    match parse_place(config.wyoming) if config.wyoming else None:
        case str(path):
            yield _unix_socket(path)
        case (host, port):
            addresses.append((host, port))
    for host, port in addresses:
        yield _port(host, port)
    if config.tls_cert:
        yield _certificate(config)


def of_model(spec: ModelSpec, available: int, wanted: Callable[[], bool]) -> Iterator[Finding]:
    """Whether a model can be served here, and how well; blocks for a second or two."""
    about = f"model {printable(spec.name)}"
    if not (spec.config.model or default_model()):
        advice = "name one with --model, or install the default: pip install 'umaserve[default-model]'"
        yield Finding("wrong", about, "there is none", advice)
        return
    try:
        yield _contents(about, spec.config, checked(spec.config, wanted)["contents"])
        path = spec.config.model or default_model()
        config, total = context_size.settle(path, spec.config, available, wanted)
    except program.ProgramError as error:
        yield Finding("wrong", about, str(error).removeprefix(f"{CHECKUP} failed with status 1: "))
    except ModelError as error:
        found, _, advice = str(error).partition(" available: ")
        yield Finding("wrong", about, f"{found} available", advice)
    else:
        known = available != UNKNOWN_BYTES
        left = f"of {available >> 20} MiB that are available" if known else "MiB; the available memory is unknown"
        if total > available * needs.AMPLE_SHARE:
            advice = "lower --n-ctx or --parallel, or choose a stronger quantization"
            yield Finding("note", about, f"takes {total >> 20} {left}", advice)
        else:
            takes = f"{total >> 20}" if total else "less than 1024"
            yield Finding("ok", about, f"takes {takes} {left}")
        yield _context(about, config, gguf_header.read(path).tokens)


def checked(config: Config | None, wanted: Callable[[], bool]) -> Mapping[str, Any]:
    """What this program finds of the build, and of the model if there is a ``config``. Raises as
    ``program.run``."""
    settings = {name: getattr(config, name) for name in _MODEL_SETTINGS} if config else {}
    argument = orjson.dumps(settings).decode()
    found: Mapping[str, Any] = orjson.loads(
        program.run("umaserve.engine.checkup", argument, wanted=wanted, max_s=MAX_S)
    )
    return found


def _cores() -> Finding:
    usable, there = usable_cores(), os.cpu_count() or 1
    name = processor() or "unknown"
    if usable < there:
        advice = "if this is not intended, raise the control group's CPU quota, or the process's affinity"
        return Finding("note", "processor", f"{name}: {usable} of {there} cores may be used", advice)
    return Finding("ok", "processor", f"{name}, {there} cores")


def _pages() -> Finding:
    mode = devices.huge_pages()
    if mode == "never":
        advice = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        return Finding("note", "huge pages", "off: dividing the KV cells takes several times as long", advice)
    return Finding("ok", "huge pages", mode or "unknown")


def _clock() -> Finding:
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if clock.is_behind():
        found = f"{now} is before this package was installed: certificates and keys may seem not to be valid yet"
        return Finding("wrong", "clock", found, "set it: timedatectl set-ntp true")
    if clock.is_synchronized() is False:
        return Finding("note", "clock", f"{now}, not synchronized with a time server", "timedatectl set-ntp true")
    return Finding("ok", "clock", now)


def _descriptors(config: Config) -> Finding:
    most = most_descriptors()
    needed = config.max_sessions + OWN_DESCRIPTORS
    if most is not None and most < needed:
        found = f"a process may have {most}, and --max-sessions {config.max_sessions} needs {needed}"
        return Finding("wrong", "open files", found, "raise the limit (ulimit -Hn), or lower --max-sessions")
    return Finding("ok", "open files", "no limit" if most is None else f"up to {most}")


def _kept(folder: str, most: int) -> Finding:
    """Finding on the folder for computed prompts, which may grow to ``most`` bytes."""
    about, there = f"folder {printable(folder)}", os.path.abspath(folder)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    status, is_made = os.stat(there), there == os.path.abspath(folder)
    if not stat.S_ISDIR(status.st_mode):
        return Finding("wrong", about, f"{printable(there)} is not a folder", "choose another with --kv-cache")
    if is_made and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return Finding("wrong", about, "others may write to it", f"chmod 700 {printable(folder)}")
    if is_made and status.st_uid != os.geteuid():
        return Finding("note", about, "it belongs to another user", "run this as the daemon's user, who must own it")
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "choose another with --kv-cache, or run this as the daemon's user"
        return Finding("wrong", about, f"this user may not write to {printable(there)}", advice)
    free = shutil.disk_usage(there).free
    if free < most:
        found = f"{free >> 20} MiB of its disk are free, and it may take {most >> 20}"
        return Finding("note", about, found, "unless it has them already, lower --kv-cache-bytes")
    return Finding("ok", about, f"{free >> 30} GiB of its disk are free")


def _unit(config: Config) -> Iterator[Finding]:
    values = systemd.unit(UNIT, ("LimitNOFILE", "MemoryMax", "CPUQuotaPerSecUSec", "ActiveState"))
    if not values:
        return
    needed = config.max_sessions + OWN_DESCRIPTORS
    files, memory = values.get("LimitNOFILE", ""), values.get("MemoryMax", "")
    change = f"systemctl edit {UNIT}"
    if files.isdecimal() and int(files) < needed:
        found = f"LimitNOFILE={files}, and --max-sessions {config.max_sessions} needs {needed}"
        yield Finding("wrong", "unit", found, f"raise it: {change}")
    size = _model_bytes(config)
    if memory.isdecimal() and int(memory) < size:
        found = f"MemoryMax={int(memory) >> 20} MiB, and the model's file alone has {size >> 20} MiB"
        yield Finding("wrong", "unit", found, f"raise it: {change}")
    quota = values.get("CPUQuotaPerSecUSec", "infinity")
    if quota != "infinity":
        found = f"CPUQuota= lets the daemon compute for {quota} of each second"
        yield Finding("note", "unit", found, f"remove it for the machine's full speed: {change}")
    yield Finding("ok", "unit", f"{UNIT} is {values.get('ActiveState', 'unknown')}")


def _model_bytes(config: Config) -> int:
    try:
        return os.path.getsize(config.model or default_model())
    except OSError:
        return 0


def _unix_socket(path: str) -> Finding:
    about, folder = f"socket {printable(path)}", os.path.dirname(path) or "."
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
        if not is_socket:
            return Finding(
                "wrong", about, "another file exists there", "remove it, or choose another path with --socket"
            )
        if ports.answers(path):
            return Finding("note", about, "a daemon serves it", "stop that one before you start another")
    except FileNotFoundError:
        pass
    except OSError as error:
        return Finding("wrong", about, error.strerror or str(error), "join its group, or run this as its user")
    if not os.path.isdir(folder):
        advice = f"mkdir {printable(folder)}, or let systemd make it (RuntimeDirectory=)"
        return Finding("wrong", about, "its folder does not exist", advice)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("wrong", about, "this user may not write there", "choose another path with --socket")
    return Finding("ok", about, "free")


def _port(host: str, port: int) -> Finding:
    about = f"address {host}:{port}"
    try:
        if port == 0 or ports.is_free(host, port):
            return Finding("ok", about, "free")
    except OSError as error:
        return Finding("wrong", about, error.strerror or str(error), "choose another one")
    held = ports.holder(port)
    if held is None:
        return Finding("wrong", about, "another user's program listens there", "choose another port, or stop it")
    what = f"process {held.pid} listens there: {printable(held.command[:80])}"
    if "umaserve" in held.command:
        return Finding("note", about, what, "stop that daemon before you start another")
    return Finding("wrong", about, what, "choose another port, or stop it")


def _certificate(config: Config) -> Finding:
    try:
        server_context(config.tls_cert, config.tls_key)
    except ConfigError as error:
        found, _, advice = str(error).rpartition(": ")
        return Finding("wrong", "TLS", found, advice)
    return Finding("ok", "TLS", printable(config.tls_cert))


def _context(about: str, config: Config, trained: int) -> Finding:
    cells = config.cells_for(trained)
    tokens = min(cells, trained) or cells
    found = f"a sequence may have {tokens} tokens; {cells} KV cells for {config.parallel} sequences"
    if tokens < trained:
        return Finding("note", about, f"{found}; it was trained for {trained}", "raise --n-ctx if memory allows")
    return Finding("ok", about, found)


def _contents(about: str, config: Config, contents: Mapping[str, Any]) -> Finding:
    name = f"{contents['architecture']}, {contents['quantization']}"
    if contents["template_problem"]:
        found = f"{name}: {contents['template_problem']}"
        return Finding("wrong", about, found, "give a chat template that works with --chat-template")
    if contents["slow_type"] and config.weights == "as-is":
        found = f"{name}: llama.cpp computes weights in {contents['slow_type']} slowly"
        return Finding("note", about, found, "see what umaserve tune says, and set --weights fast")
    if not contents["generates"]:
        return Finding("ok", about, f"{name}: it is for embeddings or rankings, and generates no text")
    if not contents["has_template"]:
        advice = "if it was trained for another, name that with --chat-template"
        return Finding("note", about, f"{name}, without a chat template: ChatML is used", advice)
    if not contents["knows_tools"]:
        advice = "for reliable tool calls choose a model that was trained for them"
        return Finding("note", about, f"{name}; its template has no tools: the system message describes them", advice)
    return Finding("ok", about, f"{name}, with a chat template that has tools")
