"""The programs that are tried beside umaserve: what each needs, which tests it runs, and why some of them fail."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.reasons import BFCL, LANGCHAIN, LLAMA_SERVER, OLLAMA, OPEN_RESPONSES, REAL_SCHEMAS, SCHEMAS

ROOT = Path(__file__).parents[2]
CLIENTS = Path(__file__).parent / "clients"
PYPI = ROOT / "tests/end_to_end/pypi/requirements.txt"
NPM = ROOT / "tests/end_to_end/npm/package.json"


@dataclasses.dataclass(frozen=True)
class Suite:
    """One row of the page."""

    name: str
    packages: tuple[str, ...]
    """Distributions whose versions are named."""
    tests: tuple[str, ...]
    """Arguments of pytest, from the root of the repository or from ``clients``; for Go, the names of tests."""
    kind: str = "own"
    """Whose tests they are. ``own``: those of this repository, in its environment; ``pypi`` and ``npm``: likewise, with
    clients from there; ``client``: a file of ``clients`` in an environment of the client's; ``schemas``: the tests of
    JSON schemas; ``calls``: questions that tools answer; ``go``: a module's; ``compliance``: Open Responses';
    ``llama-server``: llama.cpp's."""
    requirements: tuple[str, ...] = ()
    """For pip, of a ``client``."""
    reasons: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What is known of cases that fail or are left out, by a regular expression for the case's name and its message."""
    tools: tuple[str, ...] = ()
    """Programs that must be there."""


def _own(name: str, packages: str, *tests: str) -> Suite:
    return Suite(name, tuple(packages.split()), tests)


def _npm(name: str, packages: str, selected: str) -> Suite:
    tests = ("tests/end_to_end/test_e2e_npm.py", "-k", selected)
    return Suite(name, tuple(packages.split()), tests, "npm", tools=("node", "npm"))


def _client(name: str, package: str, *requirements: str) -> Suite:
    file = f"use_{name.replace('-', '_')}.py"
    return Suite(name, (package,), (file,), "client", requirements or (package,))


_ONE_LOOP = (
    *("-o", "asyncio_default_test_loop_scope=session"),
    *("-o", "asyncio_default_fixture_loop_scope=session"),
)

_LLAMA_SERVER = "basic tokenize completion compat_oai_responses ignore_eos"

SUITES = [
    _own("openai (Python)", "openai", "tests/end_to_end/test_e2e_openai.py", "tests/end_to_end/test_e2e_responses.py"),
    _own("anthropic (Python)", "anthropic", "tests/end_to_end/test_e2e_anthropic.py"),
    _own("ollama (Python)", "ollama", "tests/end_to_end/test_e2e_ollama.py"),
    _own("wyoming", "wyoming", "tests/end_to_end/test_e2e_wyoming.py"),
    _own(
        *("langchain", "langchain-openai langchain-ollama"),
        *("tests/end_to_end/test_e2e_python_clients.py", "-k", "langchain"),
    ),
    _own(
        *("pydantic-ai", "pydantic-ai-slim"),
        *("tests/end_to_end/test_e2e_python_clients.py", "-k", "pydantic_ai"),
    ),
    _own(
        *("openai-agents", "openai-agents"),
        *(f"tests/end_to_end/test_e2e_openai_agents{part}.py" for part in ("", "_voice")),
    ),
    _own("llm", "llm", "tests/end_to_end/test_e2e_python_clients.py", "-k", "test_llm"),
    Suite(
        *("litellm", ("litellm",)),
        ("tests/end_to_end/test_e2e_pypi.py", "tests/end_to_end/test_e2e_litellm.py", "-k", "litellm or daemon"),
        "pypi",
    ),
    Suite("instructor", ("instructor",), ("tests/end_to_end/test_e2e_pypi.py", "-k", "instructor"), "pypi"),
    _npm("openai (JavaScript)", "openai", "openais"),
    _npm("anthropic (JavaScript)", "@anthropic-ai/sdk", "anthropics"),
    _npm("ollama (JavaScript)", "ollama", "ollamas"),
    _npm("Vercel's ai", "ai", "vercels"),
    Suite(
        *("langchain-tests", ("langchain-tests", "langchain-openai", "langchain-anthropic", "langchain-ollama")),
        # One loop for all: LangChain keeps its connections for the next test.
        *(("langchain_standard.py", "-o", "asyncio_mode=auto", *_ONE_LOOP), "client"),
        ("langchain-tests", "langchain-openai", "langchain-ollama", "langchain-anthropic"),
        LANGCHAIN,
    ),
    _client("smolagents", "smolagents", "smolagents[openai]"),
    _client("dspy", "dspy"),
    _client("llama-index", "llama-index-llms-openai-like"),
    _client("haystack", "haystack-ai"),
    _client("strands", "strands-agents", "strands-agents[openai]"),
    _client("semantic-kernel", "semantic-kernel"),
    _client("autogen", "autogen-ext", "autogen-agentchat", "autogen-ext[openai]"),
    _client("crewai", "crewai"),
    Suite(
        *("JSON-Schema-Test-Suite", ("jsonschema",)),
        *(("tests/conformance/json_schema_suite.py",), "schemas"),
        reasons=SCHEMAS,
    ),
    Suite("JSONSchemaBench", (), ("tests/conformance/json_schema_suite.py",), "schemas", reasons=REAL_SCHEMAS),
    Suite(
        *("Ollama's integration tests", ("github.com/ollama/ollama",)),
        (
            *("TestAPIGenerate", "TestAPIChat", "TestAPIListModels", "TestAPIShowModel", "TestAPIGenerateLogprobs"),
            *("TestAPIChatLogprobs", "TestBlueSky", "TestNumPredict", "TestContextExhaustion", "TestEmbedStatusCode"),
            *("TestConcurrentChat", "TestGenerateWithHistory", "TestChatWithHistory", "TestAPIToolCalling"),
        ),
        "go",
        reasons=OLLAMA,
        tools=("go",),
    ),
    Suite("Open Responses' compliance tests", (), (), "compliance", reasons=OPEN_RESPONSES, tools=("npm",)),
    Suite(
        *("llama.cpp's server tests (of its APIs)", ("llama-cpp-python",)),
        tuple(f"unit/test_{name}.py" for name in _LLAMA_SERVER.split()),
        "llama-server",
        reasons=LLAMA_SERVER,
    ),
    Suite("BFCL", ("bfcl-eval",), ("tests/conformance/function_calls.py",), "calls", reasons=BFCL),
]
