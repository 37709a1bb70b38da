"""What a chat template is given, with tools and without."""

from __future__ import annotations

import json

import pytest

from umaserve.engine.chat_template import MAX_GROWTH_BYTES, ChatTemplate
from umaserve.errors import RequestError
from umaserve.messages import ChatTurn, Tool, ToolCall

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
FORM = "{# calls stand in <tool_call> #}"
SHOWING = FORM + "{{ messages | tojson }}\n{{ tools | tojson }}"

WEATHER = Tool("weather", "Tells the weather.", '{"type": "object", "properties": {"city": {"type": "string"}}}')
CONVERSATION = (
    ChatTurn("user", "Is it warm?"),
    ChatTurn("assistant", "", (ToolCall("c1", "weather", '{"city": "Köln"}'), ToolCall("c2", "weather", "not JSON"))),
    ChatTurn("tool", "20 °C", tool_call_id="c1"),
    ChatTurn("tool", "unknown", tool_call_id="c2"),
    ChatTurn("assistant", "Rather."),
)


def plain(turns: tuple[ChatTurn, ...], tools: tuple[Tool, ...] = ()) -> str:
    return ChatTemplate(PLAIN, "<s>", "</s>").render(turns, tools, continue_final_message=False)


def test_a_template_that_knows_tools_gets_them_and_the_calls_as_objects():
    messages, tools = map(
        json.loads,
        ChatTemplate(SHOWING, "", "").render(CONVERSATION, [WEATHER], continue_final_message=False).splitlines(),
    )
    parameters = json.loads(WEATHER.parameters)
    function = {"name": "weather", "description": "Tells the weather.", "parameters": parameters}
    assert tools == [{"type": "function", "function": function}]
    assert messages[0] == {"role": "user", "content": "Is it warm?"}
    assert messages[1]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}},
        {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": "not JSON"}},
    ]
    assert messages[2] == {"role": "tool", "content": "20 °C", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    "condition", ["tools", "tools is not none", "tools is defined and tools is not none"], ids=lambda c: c
)
def test_no_tools_are_none_as_templates_expect(condition: str):
    template = ChatTemplate(FORM + f"{{% if {condition} %}}yes{{% else %}}no{{% endif %}}", "", "")
    assert template.render(CONVERSATION, continue_final_message=False) == "no"
    assert template.render(CONVERSATION, [WEATHER], continue_final_message=False) == "yes"


def test_a_template_that_sets_tools_where_there_are_none_knows_them():
    source = (
        "{% if not tools is defined %}{% set tools = none %}{% endif %}{% if tools %}{{ tools[0].type }}{% endif %}"
    )
    assert (
        ChatTemplate(FORM + source, "", "").render(CONVERSATION, [WEATHER], continue_final_message=False) == "function"
    )


def test_a_template_with_another_form_of_calls_has_the_tools_told_in_words():
    source = "{% if tools %}Write [CALL].{% endif %}" + PLAIN
    told = ChatTemplate(source, "", "").render(CONVERSATION, [WEATHER], continue_final_message=False)
    assert "<tools>" in told
    assert "[CALL]" not in told


def test_without_tools_a_plain_template_gets_the_turns_as_they_are():
    turns = (ChatTurn("system", "Be brief."), ChatTurn("user", "Hi"), ChatTurn("assistant", "Hello"))
    assert plain(turns) == "<system>Be brief.</system><user>Hi</user><assistant>Hello</assistant>>"


def test_a_plain_template_gets_calls_and_their_results_in_words():
    assert plain(CONVERSATION) == (
        "<user>Is it warm?</user>"
        '<assistant><tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": "not JSON"}\n</tool_call></assistant>'
        "<user><tool_response>\n20 °C\n</tool_response>\n<tool_response>\nunknown\n</tool_response></user>"
        "<assistant>Rather.</assistant>>"
    )


def test_a_users_turn_after_a_result_stays_a_turn_of_its_own():
    turns = (ChatTurn("tool", "1"), ChatTurn("user", "and?"), ChatTurn("tool", "2"))
    assert plain(turns) == (
        "<user><tool_response>\n1\n</tool_response></user><user>and?</user>"
        "<user><tool_response>\n2\n</tool_response></user>>"
    )


@pytest.mark.parametrize("system", [(), (ChatTurn("system", "Be brief."),)], ids=["no system turn", "a system turn"])
def test_a_plain_template_has_the_tools_described_in_one_system_turn(system: tuple[ChatTurn, ...]):
    text = plain((*system, ChatTurn("user", "Hi")), (WEATHER, WEATHER))
    assert text.startswith("<system>Be brief.\n\nYou" if system else "<system>You")
    assert text.count("<system>") == 1
    assert text.endswith("</system><user>Hi</user>>")
    listed = text.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
    assert [json.loads(line)["function"]["name"] for line in listed] == ["weather", "weather"]
    assert "<tool_call>\n{" in text
    assert "}\n</tool_call>" in text


def test_the_cap_on_growth_counts_tools_and_calls():
    schema = json.dumps({"description": "x" * MAX_GROWTH_BYTES})
    assert len(plain((ChatTurn("user", "Hi"),), (Tool("t", "", schema),))) > MAX_GROWTH_BYTES
    call = ToolCall("c", "t", json.dumps({"x": "y" * MAX_GROWTH_BYTES}))
    assert len(plain((ChatTurn("assistant", "", (call,)),))) > MAX_GROWTH_BYTES
    with pytest.raises(RequestError, match="made too much text"):
        ChatTemplate("{% for _ in range(99999) %}{{ messages[0].content }}{% endfor %}", "", "").render(
            (ChatTurn("user", "Hello"),)
        )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ messages[0].absent.absent }}", "absent"),
        ("{{ 1 / (messages | length - 1) }}", "division"),
    ],
)
def test_a_template_that_fails_on_the_turns_refuses_them(source: str, said: str):
    with pytest.raises(RequestError, match=f"chat: the model's chat template rejected it: .*{said}"):
        ChatTemplate(source, "", "").render((ChatTurn("user", "Hi"),))


@pytest.mark.parametrize(("wanted", "told"), [(None, "as ever"), (True, "think"), (False, "don't")])
def test_thinking_is_a_variable_that_is_undefined_where_nobody_says(wanted: bool | None, told: str):
    source = "{% if enable_thinking is not defined %}as ever{% elif enable_thinking %}think{% else %}don't{% endif %}"
    assert ChatTemplate(source, "", "").render((ChatTurn("user", "Hi"),), enable_thinking=wanted) == told


BEGUN = (ChatTurn("user", "Hi"), ChatTurn("assistant", "Hel"))
SAID_TWICE = (*BEGUN, ChatTurn("assistant", "lo"))
CALLED = (ChatTurn("user", "Hi"), ChatTurn("assistant", "", (ToolCall("c1", "weather", "{}"),)))


@pytest.mark.parametrize(
    ("turns", "wanted", "opened", "told"),
    [
        (BEGUN, None, True, "<user>Hi</user>>Hel"),
        (BEGUN, True, False, "<user>Hi</user>>Hel"),
        (BEGUN, False, True, "<user>Hi</user><assistant>Hel</assistant>>"),
        (BEGUN, False, False, "<user>Hi</user><assistant>Hel</assistant>"),
        (BEGUN[:1], None, True, "<user>Hi</user>>"),
        (BEGUN[:1], False, False, "<user>Hi</user>"),
    ],
)
def test_an_answer_that_the_assistant_has_begun_goes_on(
    turns: tuple[ChatTurn, ...], wanted: bool | None, opened: bool, told: str
):
    template = ChatTemplate(PLAIN, "", "")
    assert template.render(turns, continue_final_message=wanted, add_generation_prompt=opened) == told


@pytest.mark.parametrize(
    ("turns", "wanted", "said"),
    [
        (SAID_TWICE, None, "messages: expected at most one assistant message at the end, got two"),
        (BEGUN[:1], True, "continue_final_message: expected the last message to have the role assistant"),
        (CALLED, True, "continue_final_message: expected a last message without tool calls"),
    ],
)
def test_what_cannot_be_continued_is_refused(turns: tuple[ChatTurn, ...], wanted: bool | None, said: str):
    with pytest.raises(RequestError, match=said):
        ChatTemplate(PLAIN, "", "").render(turns, continue_final_message=wanted)


def test_after_the_assistants_calls_a_new_turn_begins():
    assert ChatTemplate(PLAIN, "", "").render(CALLED).endswith("</assistant>>")
