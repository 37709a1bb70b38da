"""One chat template: its source compiled, and the prompts that it makes of messages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import jinja2.meta

from umaserve.chat_format.known_tool_forms import known
from umaserve.chat_format.template_form import TOOL, Form, Message, learned
from umaserve.chat_format.thought_form import learn as learn_thoughts
from umaserve.chat_format.tool_form import learn, writes
from umaserve.core.errors import Fault, RequestError
from umaserve.core.tool_call_format import TOLD_IN_WORDS, TOOL_CALL_OPEN, ThoughtForm, ToolForm
from umaserve.engine.template.rendering import RENDERER, TooLong
from umaserve.engine.template.template_sandbox import FAILURES, Sandbox

MAX_GROWTH = 256 * 1024
"""How many characters a prompt may be longer than twice the text of turns and tools."""
MAX_PROBLEM = 300
"""Most characters of a template's own words in an error."""
MAX_STEPS = 1_000_000
"""Most loop iterations and calls for one prompt. Some templates look through all of 1,024 turns for each of them."""
MAX_PROBE_STEPS = 10_000
"""Most loop iterations and calls for one of the short conversations from which a template's form is learned."""


KEPT_THOUGHTS: dict[str, tuple[object, object]] = {
    "preserve_thinking": (True, False),
    "clear_thinking": (False, True),
    "truncate_history_thinking": (False, True),
    "drop_thinking": (False, True),
    "think_render_option": ("all", "lastthink"),
}
"""The variables of several templates by which the thoughts of earlier turns are written, with their values for that and
for the opposite."""

_TELLS_FORM = re.compile(rf"{TOOL_CALL_OPEN}(?:\\n|\s)*\{{")
"""Instructions to write calls as ``TOLD_IN_WORDS``."""


class Template:
    """A jinja2 template. Raises ``FAILURES`` or ``SyntaxError`` where it can't be compiled, and ``TooSlow``, as all its
    methods do.

    ``bos`` and ``eos`` are the texts of the model's tokens at the start and end of a text, ``ends`` are those of all
    tokens that end an answer. ``now`` is the clock.
    """

    def __init__(
        self,
        source: str,
        bos: str,
        eos: str,
        now: Callable[[], datetime] = datetime.now,
        *,
        ends: Collection[str] = (),
    ) -> None:
        self.source = source
        RENDERER.rendered(source, None, now())
        self.variables = jinja2.meta.find_undeclared_variables(Sandbox(now).parse(source))
        self._now = now
        self._fixed = {"bos_token": bos, "eos_token": eos}
        self.form: Form = learned(self._probed)
        self.thought_form = learn_thoughts(source, self._probed_thoughts, {eos, *ends} - {""})
        """How the model marks its thoughts; ``None`` if the template shows no marks."""
        self.thinks = self.form.shows_thoughts or self.thought_form is not None or "think>" in source
        """Whether the model writes thoughts before its answer, unless told otherwise."""
        calls = learn(self._probed_calls, {eos, *ends} - {""})
        form = known(source) or calls
        if form is not None and self.thought_form is not None:
            form = _after_answer(form, self.thought_form)
        # Some tell how to write calls, and write none themselves.
        in_words = form is None and _TELLS_FORM.search(source) is not None and "tools" in self.variables
        self.writes_calls = calls is not None or in_words or (form is not None and writes(self._probed_calls, form))
        """Whether the template writes the calls of earlier turns."""
        self.tells_tools = (self.form.tools and form is not None) or in_words
        """Whether the template describes the tools, and asks for calls in a form that is known here."""
        self.tool_form = form or TOLD_IN_WORDS
        """How the model writes calls."""

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        switches: Mapping[str, Any],
        *,
        opens_answer: bool,
        limit: int,
        steps: int = MAX_STEPS,
    ) -> str:
        """The prompt for ``messages`` and ``tools``, both as in OpenAI's API; content is a string, thoughts are
        ``reasoning_content``. ``switches`` are variables of the template. Raises ``RequestError``, also for more than
        ``limit`` characters or ``steps``."""
        values = {**switches, "messages": self.form.shaped(messages), **_offered(tools)}
        if opens_answer:
            values["add_generation_prompt"] = True
        try:
            return self._rendered(values, limit, steps)
        except FAILURES as error:
            problem = f"the model's chat template rejected it: {' '.join(str(error).split())[:MAX_PROBLEM]}"
            raise RequestError(Fault.BAD_REQUEST, "messages", problem) from None

    def _probed(self, messages: Sequence[Message], tools: Sequence[Message]) -> str:
        values = {"messages": messages, **_offered(tools), "add_generation_prompt": True}
        try:
            return self._rendered(values, MAX_GROWTH, MAX_PROBE_STEPS)
        except (RequestError, *FAILURES):
            return ""

    def _probed_thoughts(self, messages: Sequence[Message], opens_answer: bool) -> str:
        tools = [TOOL] if any("tool_calls" in message for message in messages) else []
        kept = {name: value for name, (value, _dropped) in KEPT_THOUGHTS.items()}
        switches = {**kept, "enable_thinking": True, "thinking": True}
        try:
            return self.prompt(
                messages, tools, switches, opens_answer=opens_answer, limit=MAX_GROWTH, steps=MAX_PROBE_STEPS
            )
        except RequestError:
            return ""

    def _probed_calls(self, messages: Sequence[Message], tools: Sequence[Message], opens_answer: bool) -> str:
        return self.prompt(messages, tools, {}, opens_answer=opens_answer, limit=MAX_GROWTH, steps=MAX_PROBE_STEPS)

    def _rendered(self, values: Mapping[str, Any], limit: int, steps: int) -> str:
        today = self._now()
        dates = {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y")}
        try:
            return RENDERER.rendered(self.source, {**dates, **self._fixed, **values}, today, limit, steps)
        except TooLong:
            problem = "the model's chat template made too much text"
            raise RequestError(Fault.BAD_REQUEST, "messages", problem) from None


def _offered(tools: Sequence[Message]) -> dict[str, Any]:
    """The variables for tools; Firefunction's template has JSON text in one of another name."""
    if not tools:
        return {"tools": None}
    return {"functions": json.dumps([tool["function"] for tool in tools], indent=4), "tools": list(tools)}


def _after_answer(form: ToolForm, thoughts: ThoughtForm) -> ToolForm:
    """``form`` also without the mark that closes an answer before calls, which is no part of the answer's text."""
    opens = form.opens.removeprefix(thoughts.answer_closes.strip())
    return form if opens == form.opens else replace(form, also=(*form.also, replace(form, opens=opens)))
