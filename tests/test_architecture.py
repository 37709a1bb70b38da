"""Imports go one way, as ARCHITECTURE.md says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import umaserve

ROOT = Path(umaserve.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

ALLOWED = {
    "protocol": {"protocol", "errors", "messages"},
    "net": {"net", "errors"},
    "http": {"http", "protocol", "serving", "net", "errors", "messages"}
    | {"connection", "services", "detached", "keys", "addresses", "config", "metrics", "spoken"},
    "relay": {"relay", "http", "protocol", "net", "errors", "metrics"}
    | {"addresses", "kinds", "settings", "link_settings", "secret_file"},
    "serving": {"serving", "errors", "messages", "metrics", "cores"},
    "engine": {"engine", "serving", "media", "speech", "errors", "messages", "config", "cores", "addresses"},
    "media": {"media"},
    "speech": {"speech", "media", "messages", "threads"},
}
"""What each package may import of umaserve."""

FOREIGN = {
    "llama_cpp": {"engine"},
    "socket": {"net", "client", "chat_cli", "entrances", "relay", "worker", "engine"},
    "ssl": {"net"},
    "selectors": {"net"},
    "h11": {"protocol"},
    "wsproto": {"protocol"},
    "prometheus_client": {"metrics"},
    "asyncio": {"client"},
    "threading": {"threads", "engine"},
    "hibari": {"speech"},
    "PIL": {"media"},
    "soxr": {"media"},
    "av": {"media"},
}
"""Who may import what from elsewhere."""


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            module = node.module or ""
            # "from umaserve import config" names modules; "from umaserve.config import Config" names a thing in one.
            names |= {f"umaserve.{alias.name}" for alias in node.names} if module == "umaserve" else {module}
    return names


def part(path: Path) -> str:
    """The package, or the module at the top, that ``path`` belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path):
    allowed = ALLOWED.get(part(path))
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "umaserve" and allowed is not None:
            assert rest.split(".")[0] in allowed, f"{path}: imports {name}"
        if top in FOREIGN:
            assert part(path) in FOREIGN[top], f"{path}: imports {name}"


@pytest.mark.parametrize("path", [p for p in FILES if part(p) == "protocol"], ids=lambda path: path.name)
def test_the_protocol_has_no_clock_and_no_socket(path: Path):
    assert not imports(path) & {"socket", "selectors", "time", "threading", "ssl"}


@pytest.mark.parametrize("path", [p for p in FILES if not p.stem.startswith("__")], ids=lambda path: path.stem)
def test_the_page_on_the_architecture_names_each_file(path: Path):
    page = (ROOT.parent / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`(?:\w+/)?(\w+\*?)`", page))
    assert path.stem in names or any(path.stem.startswith(name[:-1]) for name in names if name.endswith("*"))
