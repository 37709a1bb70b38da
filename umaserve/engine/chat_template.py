"""The model's own chat template, rendered in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from umaserve.errors import Fault, RequestError
from umaserve.messages import ChatTurn

MAX_GROWTH_BYTES = 256 * 1024
"""What a template may add to the turns' own text."""


class ChatTemplate:
    """A jinja2 template out of the GGUF; a request never brings its own."""

    def __init__(self, source: str, bos: str, eos: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        self._template = environment.from_string(source)
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def render(self, turns: Sequence[ChatTurn]) -> str:
        """The prompt for ``turns``, open for the assistant's answer; raises ``RequestError``."""
        messages = [{"role": turn.role, "content": turn.content} for turn in turns]
        limit = sum(len(turn.content) for turn in turns) * 2 + MAX_GROWTH_BYTES
        parts, length = [], 0
        try:
            for part in self._template.generate(messages=messages, add_generation_prompt=True, **self._tokens):
                parts.append(part)
                length += len(part)
                if length > limit:
                    raise RequestError(Fault.BAD_REQUEST, "chat: the model's template made too much text of it")
        except jinja2.TemplateError as error:
            raise RequestError(Fault.BAD_REQUEST, f"chat: the model's template refused it: {error}") from None
        return "".join(parts)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # jinja2's own filter escapes for HTML, which a model was not trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)
