"""How models write tool calls where their chat template doesn't show it."""

from __future__ import annotations

from umaserve.chat_format.written_calls import JSON_TYPES
from umaserve.core.tool_call_format import ParameterForm, Slot, ToolForm

_KNOWN = (
    # OpenAI's harmony: the template has the recipient before the channel, the model mostly after it.
    (
        "<|channel|>commentary",
        ToolForm(
            ("<|channel|>commentary to=functions.", Slot.NAME, " <|constrain|>json<|message|>", Slot.ARGUMENTS),
            between=None,
            also=tuple(
                ToolForm((begin, Slot.NAME, "<|channel|>commentary json<|message|>", Slot.ARGUMENTS), between=None)
                for begin in ("<|start|>assistant to=functions.", " to=functions.")
            ),
        ),
    ),
    # Liquid's LFM2, where the template has no place for earlier calls.
    (
        '"List of tools: ',
        ToolForm(
            (Slot.NAME, "(", Slot.ARGUMENTS, ")"),
            opens="<|tool_call_start|>[",
            closes="]<|tool_call_end|>",
            between=", ",
            parameters=ParameterForm(
                "",
                tuple((kind, "=") for kind in dict.fromkeys(JSON_TYPES.values())),
                "",
                between=", ",
                quote='"',
                values="python",
            ),
        ),
    ),
    # DeepSeek-R1's first template writes only calls of messages whose content is null.
    (
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>' + tool['type']",
        ToolForm(
            (
                "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>",
                Slot.NAME,
                "\n```json\n",
                Slot.ARGUMENTS,
                "\n```<\uff5ctool\u2581call\u2581end\uff5c>",
            ),
            opens="<\uff5ctool\u2581calls\u2581begin\uff5c>",
            closes="<\uff5ctool\u2581calls\u2581end\uff5c>",
        ),
    ),
    # IBM's Granite 3, likewise without a place for earlier calls.
    (
        "<|tool_call|> followed by a JSON list of tools used",
        ToolForm(
            ('{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, "}"),
            opens="<|tool_call|>[",
            closes="]",
            between=", ",
        ),
    ),
    # MiniMax-M3 writes arguments as elements.
    (
        "]<]minimax[>[",
        ToolForm(
            (']<]minimax[>[<invoke name="', Slot.NAME, '">', Slot.ARGUMENTS, "]<]minimax[>[</invoke>\n"),
            opens="]<]minimax[>[<tool_call>\n",
            closes="]<]minimax[>[</tool_call>",
            between="",
            parameters=ParameterForm(
                "]<]minimax[>[<",
                tuple((kind, ">") for kind in dict.fromkeys(JSON_TYPES.values())),
                "]<]minimax[>[</",
                values="elements",
                key_closes=">",
            ),
        ),
    ),
    # Functionary 3.2, whose prompt ends with what begins a call or a text.
    (
        ">>>${recipient}",
        ToolForm((">>>", Slot.NAME, "\n", Slot.ARGUMENTS), between="", opened=">>>", text_opens="all\n"),
    ),
)
"""Forms that can't be learned, each with a text in the templates of the models that have it."""


def known(source: str) -> ToolForm | None:
    """The form that models with the template ``source`` are known to have, where it can't be learned from it."""
    return next((form for mark, form in _KNOWN if mark in source), None)
