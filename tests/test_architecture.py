"""Imports go one way, as ARCHITECTURE.md says."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import umaserve

ROOT = Path(umaserve.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {".".join(("umaserve", *path.relative_to(ROOT).with_suffix("").parts)): path for path in FILES}

TOP = {"__init__", "__main__", "cli", "client"}
"""The modules outside all rooms."""

ROOMS: dict[str, set[str]] = {
    "core": set(),
    "system": {"core"},
    "net": {"system", "core"},
    "wire": {"core"},
    "settings": {"core"},
    "media": {"system"},
    "chat_format": {"wire", "core"},
    "dialects": {"chat_format", "wire", "core"},
    "sessions": {"chat_format", "core"},
    "kvcache": {"sessions", "core"},
    "scheduler": {"kvcache", "sessions", "system", "core"},
    "speech": {"media", "system", "core"},
    "remote": {"speech", "sessions", "settings", "system", "core"},
    "engine": {"remote", "speech", "sessions", "chat_format", "media", "settings", "wire", "system", "core"},
    "access": {"sessions", "wire", "settings", "core"},
    "stages": {"sessions", "speech", "media", "dialects", "wire", "settings", "system", "core"},
    "models": {"remote", "scheduler", "kvcache", "sessions", "settings", "net", "system", "core"},
    "http": {"net", "wire", "dialects", "system", "core"},
    "tool_servers": {"net", "sessions", "settings", "system", "core"},
    "worker": {"net", "wire", "settings", "system", "core"},
    "relay": {"http", "access", "net", "wire", "dialects", "sessions", "settings", "system", "core"},
    "daemon": {"models", "http", "access", "stages", "tool_servers", "worker", "dialects", "remote", "speech"}
    | {"scheduler", "sessions", "net", "wire", "settings", "system", "core"},
    "commands": {"client", "engine", "access", "tool_servers", "media", "net", "wire", "settings", "system", "core"},
}
"""What each room may import of umaserve besides itself: only rooms above it in this table."""

FOREIGN = {
    "llama_cpp": {"engine"},
    "llguidance": {"engine"},
    "jinja2": {"engine"},
    "socket": {"net", "system", "client", "commands", "daemon", "models", "relay", "worker", "engine", "remote"}
    | {"tool_servers"},
    "ssl": {"net"},
    "selectors": {"net"},
    "resource": {"system", "media"},
    "h11": {"wire"},
    "wsproto": {"wire"},
    "python_multipart": {"wire"},
    "prometheus_client": {"core", "daemon"},
    "opentelemetry": {"net", "relay", "daemon"},
    "redis": {"relay"},
    "asyncio": {"client", "tool_servers"},
    "mcp": {"tool_servers", "commands"},
    "threading": {"system", "engine", "remote"},
    "hibari": {"speech"},
    "huggingface_hub": {"commands"},
    "PIL": {"media"},
    "soxr": {"media"},
    "av": {"media"},
}
"""Who may import what from elsewhere."""

LOADS_LLAMA_CPP = {"__main__", "cli", "commands/tune", "commands/tune_measurements"}
"""The modules outside the engine that import ``llama_cpp`` by way of it, all for ``umaserve tune``."""


LINUX = {
    *("sched_getaffinity", "memfd_create", "eventfd", "pidfd_open", "pipe2", "prctl", "epoll", "MADV_HUGEPAGE"),
    *("SO_PEERCRED", "SOCK_NONBLOCK", "SOCK_CLOEXEC", "MSG_CMSG_CLOEXEC", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT"),
    *("O_TMPFILE", "O_PATH", "platform", "setpriority"),
}
"""What only Linux has, or has otherwise, by the name of a module's attribute: only ``system`` asks for it."""


class Module(NamedTuple):
    """What the tests know of a file, which is parsed once for all of them."""

    imports: set[str]
    linux: set[str]
    """What it asks of Linux: attributes, and files below ``/proc`` and ``/sys``."""
    methods: set[str]
    """All functions of its classes, as CLASS.FUNCTION."""


@functools.cache
def module(path: Path) -> Module:
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    linux = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & LINUX
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    linux |= {text for text in texts if text.startswith(("/proc", "/sys/")) and " " not in text}
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    methods = {f"{node.name}.{one.name}" for node in classes for one in node.body if isinstance(one, ast.FunctionDef)}
    return Module(imports(path, nodes), linux, methods)


def imports(path: Path, nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            module = node.module or ""
            # "from umaserve import client" names a module; "from umaserve.client import Client" names a thing in one.
            names |= {f"umaserve.{alias.name}" for alias in node.names} if module == "umaserve" else {module}
            names |= {name for alias in node.names if (name := f"{module}.{alias.name}") in MODULES}
    return names


def part(path: Path) -> str:
    """The package, or the module at the top, that ``path`` belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


# One test for all files, not one for each: pytest takes longer for a test than these do for a file.


def test_only_system_knows_the_operating_system():
    wrong = {path: used for path in FILES if part(path) != "system" and (used := module(path).linux)}
    assert not wrong


def test_every_file_is_in_a_room():
    assert {part(path) for path in FILES} == TOP | set(ROOMS)


def test_rooms_import_only_rooms_above_them():
    above = set(TOP)
    for room, allowed in ROOMS.items():
        assert allowed <= above, f"{room}: imports {allowed - above}"
        above.add(room)


def test_imports_go_one_way():
    wrong = [(path, name) for path in FILES for name in module(path).imports if not may_import(part(path), name)]
    assert not wrong


def may_import(room: str, name: str) -> bool:
    top, _, rest = name.partition(".")
    if top == "umaserve" and room in ROOMS and rest.split(".")[0] not in ROOMS[room] | {room, "__version__"}:
        return False
    return room in FOREIGN.get(top, {room})


def test_few_modules_outside_the_engine_load_llama_cpp():
    imported = {path: module(path).imports for path in FILES}
    loading = {path for path in FILES if any(name.startswith("llama_cpp") for name in imported[path])}
    before: set[Path] = set()
    while loading != before:
        before = loading
        loading = before | {path for path in FILES if before & {MODULES.get(name) for name in imported[path]}}
    outside = {str(path.relative_to(ROOT).with_suffix("")) for path in loading if part(path) != "engine"}
    assert outside == LOADS_LLAMA_CPP


def test_codecs_and_dialects_have_no_clock_and_no_socket():
    forbidden = {"socket", "selectors", "time", "threading", "ssl"}
    assert not [path for path in FILES if part(path) in {"wire", "dialects"} and module(path).imports & forbidden]


def test_the_page_on_the_architecture_names_each_file():
    page = (ROOT.parent / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`(?:\w+/)?(\w+\*?)`", page))
    beginnings = tuple(name[:-1] for name in names if name.endswith("*"))
    stems = {path.stem for path in FILES if not path.stem.startswith("__")} - names
    assert not [stem for stem in stems if not (beginnings and stem.startswith(beginnings))]


def test_the_steps_of_a_request_are_functions():
    page = (ROOT.parent / "ARCHITECTURE.md").read_text()
    steps = re.findall(r"^\| \d\. \w+ \| `([\w/]+\.py)` \| `(\w+)\.(\w+)` \|", page, re.MULTILINE)
    assert len(steps) == 9
    for file, owner, function in steps:
        assert f"{owner}.{function}" in module(ROOT / file).methods, file
    # What else the steps name.
    everywhere = {name for path in FILES for name in module(path).methods}
    (section,) = re.findall(r"^## A request in nine steps$.*?^## ", page, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([A-Z]\w+\.\w+)`", section))
    assert named <= everywhere, named - everywhere


def test_no_two_test_files_have_one_name():
    # pytest would run them apart from each other only.
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
