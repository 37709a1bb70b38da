"""The prompt of a conversation, made by the model's chat templates."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2.meta

from umaserve.chat_format.tools import signatures, with_calls_as_text, with_instructions
from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.core.requests import ChatTurn, Tool
from umaserve.core.tool_call_format import TOLD_IN_WORDS, ThoughtForm, ToolForm
from umaserve.engine.template.rendering import RENDERER, TooSlow
from umaserve.engine.template.template import KEPT_THOUGHTS, MAX_GROWTH, MAX_PROBE_STEPS, Template
from umaserve.engine.template.template_sandbox import FAILURES

log = logging.getLogger(__name__)

MAX_TEMPLATE = 1 << 20
"""Most characters in a template; the longest known has 20,000."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Template that most models without one were trained with."""


class ChatTemplate:
    """The templates of one model. Where one can't be used, ``render`` says so to every chat request.

    ``source`` is the template for all conversations, ``with_tools`` a separate one for those with tools, if there is
    one. ``bos`` and ``eos`` are the texts of the tokens at a text's start and end; where ``adds_bos`` or ``adds_eos``,
    tokenizing adds them, and so the prompt has none. ``ends`` are the texts of all tokens that end an answer.
    """

    def __init__(
        self,
        source: str,
        bos: str,
        eos: str,
        *,
        with_tools: str | None = None,
        adds_bos: bool = False,
        adds_eos: bool = False,
        ends: Collection[str] = (),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._start = bos if adds_bos else ""
        self._end = eos if adds_eos else ""
        self._problem = ""
        self._ends = ends
        self._template = self._compiled(source, bos, eos, now)
        self._with_tools = self._template
        if with_tools is not None:
            self._with_tools = self._compiled(with_tools, bos, eos, now) or self._template
        if self._template is None:
            log.warning("chat requests are refused: %s", self._problem)
        elif self._problem:
            log.warning("conversations with tools use the default chat template: %s", self._problem)

    @property
    def problem(self) -> str:
        """Why one of the templates can't be used; empty where all can."""
        return self._problem

    @property
    def tool_form(self) -> ToolForm:
        """How the model writes tool calls."""
        return TOLD_IN_WORDS if self._with_tools is None else self._with_tools.tool_form

    @property
    def thought_form(self) -> ThoughtForm | None:
        """How the model marks its thoughts; ``None`` if the template shows no marks."""
        return None if self._template is None else self._template.thought_form

    @property
    def thinks(self) -> bool:
        """Whether the model writes thoughts before its answer, unless told otherwise."""
        return self._template is not None and self._template.thinks

    def render(
        self,
        turns: Sequence[ChatTurn],
        tools: Sequence[Tool] = (),
        enable_thinking: bool | None = None,
        *,
        switches: Mapping[str, Any] | None = None,
        continue_final_message: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for ``turns``; raises ``RequestError``.

        Where the template has no place for ``tools``, or for calls in ``turns``, they are written as plain text.
        ``switches`` are variables of the template, and ``enable_thinking`` is the one that
        most models that think have; ``None``: they think. The last two arguments are as in ``requests.Generate``.
        """
        values: dict[str, Any] = dict(switches or {})
        if enable_thinking is not None:
            values["enable_thinking"] = enable_thinking
        if _is_continued(turns, continue_final_message):
            prompt = self._render(turns[:-1], tools, values, opens_answer=True, is_text=bool(turns[-1].content))
            return prompt + self._begun(turns[-1], prompt)
        return self._render(turns, tools, values, opens_answer=add_generation_prompt)

    def continues_thought(self, turns: Sequence[ChatTurn], wanted: bool | None) -> bool:
        """Whether the answer continues the last turn in its thoughts; raises ``RequestError`` as ``render``."""
        last = turns[-1]
        thinks = self.thought_form is not None and bool(last.thoughts) and not last.content
        return thinks and _is_continued(turns, wanted)

    def _begun(self, turn: ChatTurn, prompt: str) -> str:
        """The beginning of an answer that is to be continued, after the ``prompt`` that opens it."""
        form = self.thought_form
        if form is None:
            return turn.content
        opened = prompt.rstrip().endswith(form.opens.strip())
        thoughts = turn.thoughts
        if thoughts and not opened:
            thoughts = form.opens + thoughts
        if not turn.content:
            return thoughts
        answer = form.answers[0] if form.answers else ""
        if thoughts or opened:
            return thoughts + form.closes + form.turn + answer + turn.content
        return answer + turn.content

    def _render(
        self,
        turns: Sequence[ChatTurn],
        tools: Sequence[Tool],
        switches: Mapping[str, Any],
        *,
        opens_answer: bool,
        is_text: bool = False,
    ) -> str:
        """The prompt for ``turns``. ``is_text``: the answer is no call, though there are tools."""
        template = self._with_tools if tools else self._template
        if template is None:
            raise RequestError(Fault.BAD_REQUEST, "messages", self._problem)
        limit = _size(turns, tools) * 2 + MAX_GROWTH
        opens_text = template.tool_form.text_opens if opens_answer and (is_text or not tools) else ""
        if not template.writes_calls:
            turns = with_calls_as_text(turns, template.tool_form, results=not template.tells_tools)
        if tools and not template.tells_tools:
            turns, tools = with_instructions(turns, tools, template.tool_form), ()
        messages = [_message(turn) for turn in turns]
        values = {**_usual(template, switches), **switches}
        render = functools.partial(template.prompt, messages, opens_answer=opens_answer, limit=limit)
        try:
            prompt = render(signatures(tools), values)
        except TooSlow:
            problem = "the model's chat template takes too long for it"
            raise RequestError(Fault.NOT_SUPPORTED, "messages", problem) from None
        except RequestError as error:
            # What is taken without one of the optional fields is refused because of it.
            render = functools.partial(render, steps=MAX_PROBE_STEPS)
            if switches and _works(lambda: render(signatures(tools), _usual(template, {}))):
                field = "chat_template_kwargs"
            else:
                field = "tools" if tools and _works(lambda: render((), values)) else "messages"
            raise RequestError(error.fault, field, error.problem) from None
        return prompt.removeprefix(self._start).removesuffix(self._end) + opens_text

    def _compiled(self, source: str, bos: str, eos: str, now: Callable[[], datetime]) -> Template | None:
        """The template; ``None`` for one that can't be used."""
        try:
            if len(source) > MAX_TEMPLATE:
                raise ValueError(f"it has more than {MAX_TEMPLATE} characters")
            return Template(source, bos, eos, now, ends=self._ends)
        except (*FAILURES, SyntaxError, MemoryError, TooSlow) as error:
            # Python's parser has limits of its own, which it reports as syntax errors.
            self._problem = f"the model's chat template can't be used: {_in_one_line(error)}: name another file "
            self._problem += "with --chat-template"
            return None


def read(path: str) -> str:
    """The template in a file that the operator named; raises ``ConfigError`` where it can't be used."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_TEMPLATE + 1)
        source = data.decode()
    except (OSError, ValueError) as error:
        raise _refused(path, _in_one_line(error), "name a text file in UTF-8") from None
    if len(data) > MAX_TEMPLATE:
        raise _refused(path, f"larger than {MAX_TEMPLATE} bytes", "name a file with one jinja2 template")
    try:
        Template(source, "", "")
    except (*FAILURES, SyntaxError, MemoryError, TooSlow) as error:
        raise _refused(path, _in_one_line(error), "name a file with one jinja2 template") from None
    finally:
        # Whoever reads a file does not render it.
        RENDERER.close()
    return source


def _works(render: Callable[[], str]) -> bool:
    try:
        render()
    except (RequestError, TooSlow):
        return False
    return True


def _refused(path: str, problem: str, advice: str) -> ConfigError:
    return ConfigError(f"chat_template {path!r}: {problem}: {advice}")


def _in_one_line(error: BaseException) -> str:
    line = f"line {error.lineno}: " if isinstance(error, jinja2.TemplateSyntaxError) else ""
    return line + " ".join(str(error).split())[:300]


def _usual(template: Template, switches: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that a request doesn't set: models think where they can, and their earlier thoughts are kept.

    The names are of several templates; a request sets all of them by ``preserve_reasoning`` and ``reasoning_effort``.
    """
    dropped = switches.get("preserve_reasoning") is False
    usual: dict[str, Any] = {name: values[dropped] for name, values in KEPT_THOUGHTS.items()}
    usual["enable_thinking"] = template.thinks
    if "reasoning_effort" in switches:
        usual["reasoning_strength"] = switches["reasoning_effort"]
    return usual


def _is_continued(turns: Sequence[ChatTurn], wanted: bool | None) -> bool:
    """Whether the answer continues the last turn; raises ``RequestError`` where that is wanted but impossible."""
    by_assistant = [turn.role == "assistant" for turn in turns[-2:]]
    if not by_assistant[-1]:
        if wanted:
            problem = f"expected the last message to have the role assistant, got {turns[-1].role}"
            raise RequestError(Fault.BAD_REQUEST, "continue_final_message", f"{problem}")
        return False
    if wanted is False or (turns[-1].tool_calls and wanted is None):
        return False
    if by_assistant == [True, True]:
        raise RequestError(Fault.BAD_REQUEST, "messages", "expected at most one assistant message at the end, got two")
    if turns[-1].tool_calls:
        problem = "expected a last message without tool calls, got some"
        raise RequestError(Fault.BAD_REQUEST, "continue_final_message", f"{problem}")
    return True


def _size(turns: Sequence[ChatTurn], tools: Sequence[Tool]) -> int:
    size = sum(len(tool.name) + len(tool.description) + len(tool.parameters) for tool in tools)
    for turn in turns:
        size += len(turn.content) + len(turn.thoughts)
        size += sum(len(call.name) + len(call.arguments) for call in turn.tool_calls)
    return size


def _message(turn: ChatTurn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.thoughts:
        message["reasoning_content"] = turn.thoughts
    if turn.tool_calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}, "id": call.id}
            for call in turn.tool_calls
        ]
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    return message
