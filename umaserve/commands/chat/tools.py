"""A turn of ``umaserve chat`` in which the model may call tools: each call is shown, and asked for before it runs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence

import orjson

from umaserve.commands.chat.input import ChatError, Conversation, Message
from umaserve.commands.chat.mcp_servers import Servers
from umaserve.commands.chat.status import Status
from umaserve.commands.http_call import CallError, events
from umaserve.system.terminal import escaped

MAX_ROUNDS = 16
"""Answers with calls to one question: a small model may call the same tool for ever."""
_QUESTION = "run it? [y]es, [a]lways this tool, [n]o, ne[v]er this tool: "
_REFUSED = "The user does not allow this call."
_STOPPED = "The user has stopped this call."

Write = Callable[[str], None]


class Approvals:
    """Which calls the user allows."""

    def __init__(self, always: Iterable[str], ask: Callable[[str], str] | None) -> None:
        """``always``: names of tools that are not asked for. ``ask`` gets an answer of the user's; ``None``: nobody is
        there to ask, and all others are refused."""
        self._always = set(always)
        self._never: set[str] = set()
        self._ask = ask

    def allow(self, tool: str) -> bool:
        """Whether a call of ``tool``, which has just been shown, may run."""
        if self._ask is None or tool in self._always or tool in self._never:
            return tool in self._always
        answer = ""
        while answer not in ("y", "a", "n", "v"):
            answer = self._ask(_QUESTION).strip().lower()[:1]
        if answer == "a":
            self._always.add(tool)
        elif answer == "v":
            self._never.add(tool)
        return answer in ("y", "a")


def turn_with_tools(
    options: argparse.Namespace,
    conversation: Conversation,
    question: Message,
    servers: Servers,
    approvals: Approvals,
    write: Write,
) -> list[Message]:
    """Ask, run what the model calls, and print its answer as it comes. Returns all turns from the question on, of which
    Ctrl-C leaves out what had not come yet. Raises ``ChatError``."""
    if not isinstance(question["content"], str):
        raise ChatError("files can't go with --mcp: ask about them in a chat without it")
    turns = [question]
    for n in range(MAX_ROUNDS + 1):
        answer: Message = {"role": "assistant", "content": ""}
        turns.append(answer)
        calls: list[Message] = []
        try:
            _answer(options, conversation, turns[:-1], servers, answer, calls, write, last=n == MAX_ROUNDS)
        except KeyboardInterrupt:
            if options.prompt:
                raise
            calls.clear()  # They are not whole.
        if answer["content"] or not calls:
            write("\n")
        if not calls:
            break
        answer["tool_calls"] = calls
        turns += [{"role": "tool", "tool_call_id": call["id"], "content": _STOPPED} for call in calls]
        try:
            for call, result in zip(calls, turns[-len(calls) :], strict=True):
                result["content"] = _run(call["function"], servers, approvals)
        except KeyboardInterrupt:
            if options.prompt:
                raise
            break
    return turns


def _answer(
    options: argparse.Namespace,
    conversation: Conversation,
    turns: Sequence[Message],
    servers: Servers,
    answer: Message,
    calls: list[Message],
    write: Write,
    *,
    last: bool,
) -> None:
    """Fill in the ``answer`` and its ``calls`` as they come. ``last``: without calls."""
    wished = {"model": conversation.model, "max_tokens": options.max_tokens, "temperature": options.temperature}
    body = {
        "messages": conversation.asking(*turns),
        "stream": True,
        "return_progress": True,
        **{key: value for key, value in wished.items() if value is not None},
    }
    if servers.tools:
        body |= {"tools": servers.functions, "tool_choice": "none" if last else "auto"}
    url = re.sub("^ws", "http", options.url)
    try:
        with Status(sys.stderr) as status:
            status.begin("the daemon computes the prompt")
            for event in events(url, options.key, "/v1/chat/completions", body):
                if (progress := event.get("prompt_progress")) is not None:
                    status.tick(f"{progress['processed'] / progress['total']:.0%}")
                for choice in event["choices"]:
                    status.clear()
                    _add(choice["delta"], answer, calls, write)
    except CallError as error:
        if answer["content"]:
            write("\n")
        raise ChatError(str(error)) from None


def _add(delta: Message, answer: Message, calls: list[Message], write: Write) -> None:
    if text := delta.get("content"):
        answer["content"] += text
        write(text)
    for part in delta.get("tool_calls") or ():
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
        function = calls[part["index"]]["function"]
        for key, value in part["function"].items():
            function[key] += value


def _run(function: Message, servers: Servers, approvals: Approvals) -> str:
    """The result of a call, for the model."""
    name, written = function["name"], function["arguments"]
    tool = servers.tools.get(name)
    if tool is None:
        return f"There is no tool {name}."
    print(escaped(f"{tool.server}: {name} {written}"), file=sys.stderr)
    try:
        arguments = orjson.loads(written or "{}")
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        return "The arguments are no JSON object."
    if not approvals.allow(name):
        print("  not allowed", file=sys.stderr)
        return _REFUSED
    result = servers.call(name, arguments)
    print(escaped(f"  {_first_line(result)}"), file=sys.stderr)
    return result


def _first_line(text: str) -> str:
    line, _, rest = text.strip().partition("\n")
    return f"{line[:200]} …" if rest or len(line) > 200 else line
