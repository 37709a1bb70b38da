"""Tables of tool servers: what each setting is, and what is refused in which words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from umaserve.core.errors import ConfigError
from umaserve.settings import tool_servers
from umaserve.settings.daemon import SETTINGS
from umaserve.settings.tool_servers import KEYS, ToolServer, read

GUIDE = Path(__file__).parents[2] / "docs/guide/mcp.md"


def of(tmp_path: Path, text: str) -> list[ToolServer]:
    file = tmp_path / "x.toml"
    file.write_text(text)
    return [*read(str(file))]


def test_a_program_and_an_address(tmp_path: Path) -> None:
    program, address = of(
        tmp_path,
        '[tools.a]\ncommand = ["run", "it"]\nallow = ["ann"]\nenv = { KEY = "1" }\nmemory = "64MiB"\n'
        '[tools.b]\nurl = "https://host/mcp"\nallow = ["*"]\nheaders = { X = "y" }\ntimeout = 5\n',
    )
    assert program == ToolServer("a", ("ann",), command=("run", "it"), env=(("KEY", "1"),), memory=64 << 20)
    assert address == ToolServer("b", ("*",), url="https://host/mcp", headers=(("X", "y"),), timeout=5.0)
    assert not program.network, "unless the operator wants it"


def test_none_without_a_file_or_tables(tmp_path: Path) -> None:
    assert [*read("")] == of(tmp_path, "") == of(tmp_path, "[tools]\n") == []


def test_who_may() -> None:
    server = ToolServer("a", ("ann", "operator"))
    assert server.allows("ann", {"interactive"})
    assert server.allows("", {"interactive", "operator"})
    assert not server.allows("bob", {"interactive"})
    assert not server.allows("", {"interactive"})
    assert ToolServer("a", ("*",)).allows("", {"background"})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tools = 5", "tools: expected a table, got the number 5"),
        ("[tools.a]\nallow = ['*']", "tools.a: expected url or command, got neither"),
        ("[tools.a]\nurl = 'http://a'\ncommand = ['a']", "tools.a: expected url or command, got both"),
        ("[tools.a]\nurl = 'http://a'", "tools.a.allow: expected who may have its tools called"),
        ("[tools.a]\nurl = 'http://a'\nallow = []", "tools.a.allow: expected who may have its tools called"),
        ("[tools.a]\nurl = 'ftp://a'", "tools.a.url: expected a URL"),
        ("[tools.a]\nurl = 'http://a'\nnetwork = true", "tools.a.network: expected to be absent where url is given"),
        ("[tools.a]\ncommand = ['a']\nheaders = {}", "tools.a.headers: expected to be absent where command is given"),
        ("[tools.a]\ncommand = []", "tools.a.command: expected an array of a program and up to 63 arguments"),
        ("[tools.a]\ncommand = 'a b'", "tools.a.command: expected an array of a program and up to 63 arguments"),
        ("[tools.a]\ncomand = ['a']", "tools.a.comand: no such setting of a tool server, did you mean command?"),
        ("[tools.a]\nenv = { A = 5 }", "tools.a.env: expected a table of up to 64 variables, got something else"),
        ("[tools.a]\ntimeout = 0", "tools.a.timeout: expected a number of seconds from 1 to 600, got the number 0"),
        ("[tools.'a b']\nurl = 'http://a'", "tools.a b: expected a name of 1 to 64 letters, digits, _ or -"),
        ("\n".join(f"[tools.a{i}]" for i in range(33)), "tools: expected at most 32 tables, got 33"),
    ],
)
def test_refusals(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path}/x.toml: {problem}")


def test_a_secret_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        of(tmp_path, '[tools.a]\nenv = { KEY = "sesame\\n" }\n')
    assert "sesame" not in str(refused.value)


def test_a_secret_is_not_printed_either(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[tools.a]\ncommand = ["a"]\nenv = { KEY = "sesame" }\nallow = ["*"]\n')
    printed = SETTINGS.render(SETTINGS.load({"config": str(file)}, {}))
    assert '[tools.a.env]\nKEY = "…"\n' in printed
    assert 'command = ["a"]' in printed
    assert "sesame" not in printed


def test_the_guide_has_each_setting() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", GUIDE.read_text(), re.MULTILINE)
    assert set(KEYS) <= {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_nothing_but_tables_of_tools_is_read(tmp_path: Path) -> None:
    assert of(tmp_path, "n_ctx = 5\n[models.a]\n") == []
    assert tool_servers.TABLE == "tools"
