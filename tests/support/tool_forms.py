"""The notations in which models write tool calls: one form of each."""

from __future__ import annotations

from umaserve.core.tool_call_format import TOLD_IN_WORDS, ParameterForm, Slot, ToolForm

TYPES = ("string", "number", "boolean", "object", "array")


def tagged(opens: str, before: str, closes: str, **more: object) -> ParameterForm:
    return ParameterForm(opens, tuple((kind, before) for kind in TYPES), closes, **more)  # type: ignore[arg-type]


FORMS = {
    "json": TOLD_IN_WORDS,
    "list": ToolForm(
        ('{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, ', "id": "', Slot.ID, '"}'),
        opens="[TOOL_CALLS][",
        closes="]",
        between=", ",
    ),
    "ids": ToolForm(("[TOOL_CALLS]", Slot.NAME, "[CALL_ID]", Slot.ID, "[ARGS]", Slot.ARGUMENTS), between=""),
    "numbers": ToolForm(
        ("<|call|>functions.", Slot.NAME, ":", Slot.INDEX, "<|args|>", Slot.ARGUMENTS, "<|end|>"),
        opens="<|calls|>",
        closes="<|done|>",
        between="",
    ),
    "bare": ToolForm(('{"name": "', Slot.NAME, '", "parameters": ', Slot.ARGUMENTS, "}"), between=None),
    "tags": ToolForm(
        ("<tool_call>\n<function=", Slot.NAME, ">\n", Slot.ARGUMENTS, "</function>\n</tool_call>"),
        parameters=tagged("<parameter=", ">\n", "\n</parameter>\n"),
    ),
    "pairs": ToolForm(
        ("<tool_call>", Slot.NAME, "\n", Slot.ARGUMENTS, "</tool_call>"),
        parameters=tagged("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", cdata=True),
    ),
    "typed": ToolForm(
        ('<invoke name="', Slot.NAME, '">\n', Slot.ARGUMENTS, "</invoke>"),
        opens="<calls>\n",
        closes="\n</calls>",
        between="\n",
        parameters=ParameterForm(
            '<parameter name="',
            (("string", '" string="true">'), *((kind, '" string="false">') for kind in TYPES[1:])),
            "</parameter>\n",
        ),
    ),
    "python": ToolForm(
        (Slot.NAME, "(", Slot.ARGUMENTS, ")"),
        opens="<|tool_call_start|>[",
        closes="]<|tool_call_end|>",
        between=", ",
        parameters=tagged("", "=", "", between=", ", quote="'", values="python"),
    ),
    "quoted": ToolForm(
        ("<|tool_call>call:", Slot.NAME, "{", Slot.ARGUMENTS, "}<tool_call|>"),
        between="",
        parameters=tagged("", ":", "", between=",", quote='<|"|>', values="bare"),
    ),
    "elements": ToolForm(
        (']<]mark[>[<invoke name="', Slot.NAME, '">', Slot.ARGUMENTS, "]<]mark[>[</invoke>\n"),
        opens="]<]mark[>[<tool_call>\n",
        closes="]<]mark[>[</tool_call>",
        between="",
        parameters=tagged("]<]mark[>[<", ">", "]<]mark[>[</", key_closes=">", values="elements"),
    ),
    "opened": ToolForm((">>>", Slot.NAME, "\n", Slot.ARGUMENTS), between="", opened=">>>", text_opens="all\n"),
}
