"""Questions of the Berkeley Function-Calling Leaderboard: a model's calls, judged by the leaderboard's own checker.

``CONFORMANCE_BFCL`` names the folder of its package, ``CONFORMANCE_GGUF`` the model. Where ``LLAMA_SERVER`` names
llama.cpp's server, it is asked the same with the same model, and a failure says whether it fails as well.
"""

from __future__ import annotations

import json
import os
import sys
import types
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from daemon import Daemon
from llama_server import LlamaServer

PACKAGE = Path(os.environ["CONFORMANCE_BFCL"])
# The leaderboard's list of models imports the libraries of all their makers; of it, the checker reads this flag.
_MODELS = types.ModuleType("bfcl_eval.constants.model_config")
_MODELS.MODEL_CONFIG_MAPPING = {"local": types.SimpleNamespace(underscore_to_dot=True)}  # type: ignore[attr-defined]
sys.modules[_MODELS.__name__] = _MODELS
sys.path.insert(0, str(PACKAGE))
MODEL = os.environ["CONFORMANCE_GGUF"]
PARTS = ("simple_python", "multiple", "parallel", "parallel_multiple")
EACH = 6
"""Questions of each part: the first ones."""
MAX_TOKENS = 256
HANGS_S = 600

Calls = list[dict[str, dict[str, Any]]]
"""The arguments by the function's name, of each call."""

ALONE = "no other server was asked"
BOTH = "llama-server's calls are wrong, too"
OURS = "llama-server's calls are right"


def questions() -> Iterator[Any]:
    for part in PARTS:
        file = f"BFCL_v4_{part}.json"
        asked, answers = (
            [json.loads(line) for line in path.read_text().splitlines()][:EACH]
            for path in (PACKAGE / "bfcl_eval/data" / file, PACKAGE / "bfcl_eval/data/possible_answer" / file)
        )
        for question, answer in zip(asked, answers, strict=True):
            assert question["id"] == answer["id"]
            yield pytest.param(part, question, answer["ground_truth"], id=f"{part}: {question['id']}")


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Mapping[str, Any]], Calls]]:
    flags = ("--http", "127.0.0.1:0", "--n-ctx", "4096", "--weights", "as-is")
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), *flags, "--model", MODEL)
    yield lambda question: _calls(f"http://{daemon.http}", question)
    daemon.stop()


@pytest.fixture(scope="session")
def ask_other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Mapping[str, Any]], Calls] | None]:
    program = os.environ.get("LLAMA_SERVER")
    if not program:
        yield None
        return
    log = tmp_path_factory.mktemp("llama-server") / "log"
    other = LlamaServer(program, MODEL, log, "-c", "4096", "-np", "1", "-t", "2", "--jinja")
    yield lambda question: _calls(other.origin, question)
    other.close()


@pytest.mark.parametrize(("part", "question", "truth"), list(questions()))
def test_calls(
    part: str,
    question: Mapping[str, Any],
    truth: Sequence[Any],
    ask: Callable[[Mapping[str, Any]], Calls],
    ask_other: Callable[[Mapping[str, Any]], Calls] | None,
) -> None:
    wrong = _wrong(part, question, truth, ask(question))
    if ask_other is None:
        assert not wrong, f"{ALONE}: {wrong}"
        return
    also = _wrong(part, question, truth, ask_other(question))
    assert not wrong, f"{BOTH if also else OURS}: {wrong}"
    # To be seen in the report's output: what only the other one gets wrong.
    print("llama-server alone is wrong" if also else "both are right")


def _wrong(part: str, question: Mapping[str, Any], truth: Sequence[Any], calls: Calls) -> str:
    """What is wrong with the calls; empty if nothing is."""
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    found = ast_checker(question["function"], calls, truth, Language.PYTHON, part, "local")
    return "" if found["valid"] else str(found["error"])


def _calls(origin: str, question: Mapping[str, Any]) -> Calls:
    body = {
        "messages": question["question"][0],
        "tools": [{"type": "function", "function": _function(one)} for one in question["function"]],
        "parallel_tool_calls": True,
        # A small model writes calls in forms of its own unless it must call.
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    content = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{origin}/v1/chat/completions", json.dumps(body).encode(), content)
    with urllib.request.urlopen(request, timeout=HANGS_S) as response:
        (choice,) = json.load(response)["choices"]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    return [{call["name"]: json.loads(call["arguments"])} for call in calls]


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function as OpenAI's clients declare it, whose names have no dots."""
    return {**function, "name": function["name"].replace(".", "_"), "parameters": _schema(function["parameters"])}


def _schema(value: Any) -> Any:
    """A schema with JSON's types in place of Python's."""
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI

    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {name: _schema(item) for name, item in value.items()}
    if isinstance(made.get("type"), str):
        made["type"] = GORILLA_TO_OPENAPI[made["type"]]
    return made
