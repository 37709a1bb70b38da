"""One chat template: its source compiled, and the prompts that it makes of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2.meta

from umaserve.engine.template_form import Form, Message, learned
from umaserve.engine.template_sandbox import FAILURES, STEPS, NoTools, Sandbox
from umaserve.errors import Fault, RequestError

MAX_GROWTH = 256 * 1024
"""How many characters a prompt may be longer than twice the text of turns and tools."""
MAX_STEPS = 1_000_000
"""Loop iterations and calls for one prompt. Some templates look through all of 1,024 turns for each of them."""
MAX_PROBE_STEPS = 10_000
"""The same for one of the short conversations from which a template's form is learned."""


class Template:
    """A jinja2 template. Raises ``FAILURES`` or ``SyntaxError`` where it can't be compiled.

    ``bos`` and ``eos`` are the texts of the model's tokens at the start and end of a text. ``now`` is the clock.
    """

    def __init__(self, source: str, bos: str, eos: str, now: Callable[[], datetime] = datetime.now) -> None:
        self.source = source
        sandbox = Sandbox(now)
        self._template = sandbox.template(source)
        self.variables = jinja2.meta.find_undeclared_variables(sandbox.parse(source))
        self._now = now
        self._fixed = {"bos_token": bos, "eos_token": eos}
        self.form: Form = learned(self._probed)
        self.thinks = self.form.shows_thoughts or "<think>" in source
        """Whether the model writes thoughts before its answer, unless told otherwise."""

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        switches: Mapping[str, Any],
        *,
        opens_answer: bool,
        limit: int,
    ) -> str:
        """The prompt for ``messages`` and ``tools``, both as in OpenAI's API; content is a string, thoughts are
        ``reasoning_content``. ``switches`` are variables of the template. Raises ``RequestError``, also for more than
        ``limit`` characters."""
        values = {**switches, "messages": self.form.shaped(messages), "tools": list(tools) or NoTools(name="tools")}
        if opens_answer:
            values["add_generation_prompt"] = True
        try:
            return self._rendered(values, limit, MAX_STEPS)
        except FAILURES as error:
            problem = f"the model's chat template rejected it: {error}"
            raise RequestError(Fault.BAD_REQUEST, "chat", problem) from None

    def _probed(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        values = {"messages": messages, "tools": list(tools) or NoTools(name="tools"), "add_generation_prompt": True}
        try:
            return self._rendered(values, MAX_GROWTH, MAX_PROBE_STEPS)
        except (RequestError, *FAILURES):
            return ""

    def _rendered(self, values: Mapping[str, Any], limit: int, steps: int) -> str:
        today = self._now()
        dates = {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y")}
        parts, length = [], 0
        for part in self._template.generate({**dates, **self._fixed, **values, STEPS: [steps]}):
            parts.append(part)
            length += len(part)
            if length > limit:
                raise RequestError(Fault.BAD_REQUEST, "chat", "the model's chat template made too much text")
        return "".join(parts)
