"""The program that says what llama.cpp's build can do here, and what a model's file holds; ``umaserve doctor`` runs it.

Argument: the model's settings as a JSON object; for an empty one only the build is looked at. Its output is a JSON
object: ``Build``, and ``Contents``. What ends it would end an engine too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from umaserve.core.errors import ConfigError, ModelError
from umaserve.core.tool_call_format import TOLD_IN_WORDS
from umaserve.engine.engine import chat_template_of
from umaserve.engine.files import gguf, weights
from umaserve.engine.llama import backends
from umaserve.engine.llama.model import Model, find
from umaserve.engine.template.chat_template import read
from umaserve.settings.daemon import Config
from umaserve.system import logs, program


@dataclass(frozen=True, slots=True)
class Build:
    """Properties of llama.cpp's build."""

    features: tuple[str, ...]
    """Sets of instructions that llama.cpp uses, by its names for them."""
    uses_gpus: bool
    repacks: bool
    """Whether it is free of the compiler's fault that breaks AMX."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents of a model's file."""

    architecture: str
    quantization: str
    slow_type: str
    """The format of most weights, if llama.cpp computes it slowly; else empty."""
    generates: bool
    """Whether it writes text; else it only makes embeddings."""
    has_template: bool
    template_problem: str
    """Why chat requests, or those with tools, will be refused or served worse; empty where they won't."""
    knows_tools: bool
    """Whether the template writes tools and their calls in a form of the model's own."""


def build() -> Build:
    features = backends.kernels().replace("CPU :", "").split("|")
    switches = (feature.split("=") for feature in features if "=" in feature)
    on = tuple(name.strip() for name, value in switches if value.strip() == "1")
    return Build(on, backends.have_gpu(), backends.may_repack())


def contents(config: Config) -> Contents:
    """Contents of the model's file. Raises ``ModelError`` and ``ConfigError`` for a file that can't be served."""
    path = find(config.model)
    slow = weights.slow_type(gguf.check(path)) or ""
    model = Model(path, config, lambda _fraction: True, empty=True)
    template = chat_template_of(model, read(config.chat_template) if config.chat_template else None)
    info = model.info(0)
    has_template = bool(config.chat_template or info.chat_template)
    knows_tools = template.tool_form != TOLD_IN_WORDS
    generates = bool(model.memory)
    return Contents(info.architecture, info.quantization, slow, generates, has_template, template.problem, knows_tools)


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns the exit status. Errors are on standard error."""
    (settings,) = arguments
    program.begin()
    logs.configure("error", "text")
    given = orjson.loads(settings)
    try:
        found = {"build": build(), "contents": contents(Config(**given)) if given else None}
    except (ModelError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(orjson.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
