"""What a chat template is given, with tools and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from umaserve.core.errors import ConfigError, RequestError
from umaserve.core.requests import ChatTurn, Tool, ToolCall
from umaserve.engine.template import template as template_module
from umaserve.engine.template.chat_template import MAX_TEMPLATE, ChatTemplate, read
from umaserve.engine.template.rendering import Renderer
from umaserve.engine.template.template import MAX_GROWTH, MAX_PROBLEM

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
FORM = "{# a call is <tool_call>{}</tool_call> #}"
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


def test_without_tools_a_prompt_that_opens_a_call_or_a_text_opens_a_text():
    source = "{# >>>${recipient} #}{% if tools %}{% endif %}{{ messages[-1].content }}|>>>"
    assert told(source) == "Hi|>>>all\n"
    assert told(source, tools=[WEATHER]).endswith("|>>>")
    assert told(source, (*HI, ChatTurn("assistant", "Well")), continues=True) == "Hi|>>>all\nWell"


def test_a_text_that_is_continued_is_no_call_though_there_are_tools():
    source = "{# >>>${recipient} #}{% if tools %}{% endif %}{{ messages[-1].content }}|>>>"
    well, nothing = (
        told(source, (*HI, ChatTurn("assistant", begun)), tools=[WEATHER], continues=True) for begun in ("Well", "")
    )
    assert well.endswith("Hi|>>>all\nWell")
    assert nothing.endswith("Hi|>>>")


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
    schema = json.dumps({"description": "x" * MAX_GROWTH})
    assert len(plain((ChatTurn("user", "Hi"),), (Tool("t", "", schema),))) > MAX_GROWTH
    call = ToolCall("c", "t", json.dumps({"x": "y" * MAX_GROWTH}))
    assert len(plain((ChatTurn("assistant", "", (call,)),))) > MAX_GROWTH
    with pytest.raises(RequestError, match="made too much text"):
        ChatTemplate("{% for _ in range(99999) %}{{ messages[0].content }}{% endfor %}", "", "").render(
            (ChatTurn("user", "Hello"),)
        )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{{ messages[0].absent() }}", "absent"),
        ("{{ 1 / (messages | length - 1) }}", "division"),
    ],
)
def test_a_template_that_fails_on_the_turns_refuses_them(source: str, said: str):
    with pytest.raises(RequestError, match=f"messages: the model's chat template rejected it: .*{said}"):
        ChatTemplate(source, "", "").render((ChatTurn("user", "Hi"),))


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ("{% for x in some %}{% endfor %}{% if tools %}{% endif %}", "chat_template_kwargs"),
        ("{% if tools %}{{ tools | length + 'a' }}{% endif %}{{ some }}", "tools"),
        ("{% if tools %}{% endif %}{{ 1 / (some - some) }}", "messages"),
    ],
)
def test_the_field_is_named_without_which_the_template_takes_the_rest(source: str, field: str):
    with pytest.raises(RequestError, match=f"^{field}: the model's chat template rejected it: "):
        ChatTemplate(FORM + source, "", "").render([ChatTurn("user", "Hi")], [WEATHER], switches={"some": 1})


def test_an_error_has_the_beginning_of_what_a_template_says():
    source = "{{ raise_exception('no\n' ~ messages[0].content) }}"
    with pytest.raises(RequestError) as refused:
        ChatTemplate(source, "", "").render([ChatTurn("user", "x" * 9999)])
    assert refused.value.problem.endswith("rejected it: no " + "x" * (MAX_PROBLEM - 3))


@pytest.mark.parametrize(("wanted", "told"), [(None, "think"), (True, "think"), (False, "don't")])
def test_a_model_that_can_think_does_so_unless_told_otherwise(wanted: bool | None, told: str):
    source = "{# <think> #}{% if enable_thinking %}think{% else %}don't{% endif %}"
    assert ChatTemplate(source, "", "").render((ChatTurn("user", "Hi"),), enable_thinking=wanted) == told


def test_a_model_that_cannot_think_is_not_told_to():
    source = "{% if enable_thinking %}think{% else %}don't{% endif %}"
    assert ChatTemplate(source, "", "").render((ChatTurn("user", "Hi"),)) == "don't"


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


HI = (ChatTurn("user", "Hi"),)
BRIEF = (ChatTurn("system", "Be brief."), *HI)


def told(source: str, turns: tuple[ChatTurn, ...] = HI, *, continues: bool = False, **options: object) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(turns, continue_final_message=continues, **options)


def test_the_mark_of_the_text_to_train_on_changes_nothing():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{%- endgeneration %}{% endfor %}."
    assert told(source, BRIEF) == "Be brief.Hi."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", '{"b": "é<", "a": [1]}'),
        ("(ensure_ascii=True)", '{"b": "\\u00e9<", "a": [1]}'),
        ("(ensure_ascii=False, separators=(',', ':'))", '{"b":"é<","a":[1]}'),
        ("(sort_keys=True)", '{"a": [1], "b": "é<"}'),
        ("(indent=1)", '{\n "b": "é<",\n "a": [\n  1\n ]\n}'),
    ],
)
def test_json_is_written_as_templates_ask(arguments: str, text: str):
    assert told(f"{{{{ {{'b': 'é<', 'a': [1]}} | tojson{arguments} }}}}") == text


def test_what_filters_make_is_written_as_json():
    assert told("{{ messages | map(attribute='role') | tojson }} {{ absent | tojson }}") == '["user"] null'


def test_what_is_absent_adds_nothing():
    assert told("{{ 'a' + messages[0].name + 'b' }}{{ messages[0].function.name }}") == "ab"


def test_what_the_sandbox_hides_is_absent():
    assert told("{{ ''.__class__.__mro__ }}{{ strftime_now.__globals__ }}.") == "."


def test_a_list_of_the_template_may_grow():
    assert told("{% set found = [] %}{% set _ = found.append('x') %}{{ found | length }}{{ found.pop() }}") == "1x"


def test_without_a_place_for_it_the_system_message_begins_the_first_turn():
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
    assert told(source, BRIEF) == "<user>Be brief.\nHi</user>>"


REMIND = ChatTurn("system", "Stay calm.")
REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system must be first') }}{% endif %}{% endfor %}"
)
LEAVES_OUT = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    "<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endif %}{% endfor %}>"
)
MOVES = (
    "{% for m in messages if m.role == 'system' %}<system>{{ m.content }}</system>{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}>"
)


@pytest.mark.parametrize("source", [REFUSES + PLAIN, LEAVES_OUT, MOVES], ids=["refuses", "leaves out", "moves"])
def test_a_later_system_message_stands_in_the_turn_before_it(source: str):
    assert told(source, (*BRIEF, REMIND)).endswith("<user>Hi\n\nStay calm.</user>>")
    assert told(source, (REMIND, *BRIEF)) == "<system>Stay calm.\n\nBe brief.</system><user>Hi</user>>"
    after_answer = (*BRIEF, ChatTurn("assistant", "Hello"), REMIND)
    text = "<system>Be brief.</system><user>Hi</user><assistant>Hello</assistant><user>Stay calm."
    assert told(source, after_answer) == text + "</user>>"
    assert told(source, (*after_answer, *HI)) == text + "\n\nHi</user>>"
    assert told(source, (*after_answer, REMIND, *HI)) == text + "\n\nStay calm.\n\nHi</user>>"


def test_a_later_system_message_stays_one_where_the_template_writes_it_in_its_place():
    assert told(PLAIN, (*BRIEF, REMIND)).endswith("<user>Hi</user><system>Stay calm.</system>>")


def test_a_template_that_reads_parts_gets_parts():
    source = "{% for m in messages %}{% for part in m.content %}{{ part.text }}|{% endfor %}{% endfor %}"
    assert told(source, BRIEF) == "Be brief.|Hi|"


@pytest.mark.parametrize(
    ("key", "text"), [("reasoning_content", "2+2"), ("reasoning", "2+2"), ("thinking", "2+2"), ("other", "")]
)
def test_earlier_thoughts_stand_where_the_template_looks_for_them(key: str, text: str):
    source = f"{{% for m in messages %}}{{{{ m.{key} }}}}{{% endfor %}}"
    assert told(source, (*HI, ChatTurn("assistant", "4", thoughts="2+2"))) == text


def test_arguments_are_text_where_the_template_takes_no_object():
    source = FORM + (
        "{% if tools %}{% endif %}{% for m in messages %}{% for call in m.tool_calls %}"
        "{{ call.function.name + call.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert told(source, CONVERSATION, tools=[WEATHER]) == 'weather{"city": "Köln"}weathernot JSON'


def test_arguments_that_were_cut_off_are_the_object_that_they_begin():
    source = FORM + (
        "{% if tools %}{% endif %}{% for m in messages %}{% for call in m.tool_calls %}"
        "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}"
        "{% endfor %}"
    )
    turns = (*HI, ChatTurn("assistant", "", tool_calls=(ToolCall("c1", "weather", '{"city": "Köln", "day": "Mo'),)))
    assert told(source, turns, tools=[WEATHER]).endswith("city=Köln;")
    assert '"arguments": {"city": "Köln"}}' in plain(turns)


def test_results_stand_in_the_message_with_the_calls_where_the_template_looks_for_them():
    source = FORM + (
        "{% if tools %}{% endif %}{% for m in messages if m.role != 'tool' %}{{ m.role }}:"
        "{% for r in m.tool_responses %}{{ r.name }}={{ r.response }};{% endfor %}{{ m.content }} {% endfor %}"
    )
    assert told(source, CONVERSATION, tools=[WEATHER]) == (
        "user:Is it warm? assistant:weather=20 °C;weather=unknown;Rather. "
    )


STRICT = (
    "{% if tools %}{% endif %}{% for m in messages %}{% for id in m.tool_calls | map(attribute='id') %}"
    "{% if id | length != 9 %}{{ raise_exception('nine') }}{% endif %}[{{ id }}]{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "{{ m.tool_call_id }}={{ m.content }};{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("call_id", ["c1", "call_Ab3dEf6hIj9kLm2nOp5qRs8t", "functions.weather:0", "aé3456789"])
def test_ids_that_the_template_refuses_are_always_the_same_others_in_calls_and_results(call_id: str):
    def conversation(first: str) -> tuple[ChatTurn, ...]:
        calls = (ToolCall(first, "weather", "{}"), ToolCall("abcdefgh2", "weather", "{}"))
        results = (ChatTurn("tool", "20", tool_call_id=first), ChatTurn("tool", "30", tool_call_id="abcdefgh2"))
        return (ChatTurn("user", "Hi"), ChatTurn("assistant", "", calls), *results)

    prompt = told(FORM + STRICT, conversation(call_id), tools=[WEATHER])
    shaped = prompt[1:10]
    assert shaped.isascii()
    assert shaped.isalnum()
    assert prompt == f"[{shaped}][abcdefgh2]{shaped}=20;abcdefgh2=30;"
    assert told(FORM + STRICT, conversation(call_id), tools=[WEATHER]) == prompt
    free = FORM + STRICT.replace("!= 9", "== 0")
    assert told(free, conversation(call_id), tools=[WEATHER]) == prompt.replace(shaped, call_id)


def test_switches_are_variables_of_the_template():
    source = "{{ documents[0] }} {{ reasoning_strength }} {{ clear_thinking }} {{ think_render_option }}"
    assert told(source, switches={"documents": ["d"], "reasoning_effort": "low"}) == "d low False all"
    assert told(source, switches={"preserve_reasoning": False}).split() == ["True", "lastthink"]
    assert told(source, switches={"clear_thinking": True}).split() == ["True", "all"]


def test_the_date_is_todays():
    source = "{{ strftime_now('%Y-%m-%d') }} {{ date_string }} {{ datetime }}"
    template = ChatTemplate(source, "", "", now=lambda: datetime(2031, 2, 3))
    assert template.render(HI) == "2031-02-03 03 Feb 2031 Feb 03 2031"


@pytest.mark.parametrize(("adds", "prompt"), [(False, "<s>Hi</s>"), (True, "Hi")])
def test_the_tokens_at_start_and_end_stand_once(adds: bool, prompt: str):
    source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    assert ChatTemplate(source, "<s>", "</s>", adds_bos=adds, adds_eos=adds).render(HI) == prompt


def test_conversations_with_tools_have_a_template_of_their_own():
    template = ChatTemplate("plain", "", "", with_tools=FORM + "{{ tools[0].function.name }}")
    assert (template.render(HI), template.render(HI, [WEATHER])) == ("plain", "weather")


def test_a_template_that_cannot_be_parsed_refuses_chat_and_nothing_else(caplog: pytest.LogCaptureFixture):
    template = ChatTemplate("{{ 'a' }}\n{% if %}", "", "")
    assert "chat requests are refused: the model's chat template can't be used: line 2:" in caplog.text
    with pytest.raises(
        RequestError, match=r"messages: .* can't be used: line 2: .* name another file with --chat-template"
    ):
        template.render(HI)


def test_tools_get_the_common_template_where_theirs_cannot_be_parsed(caplog: pytest.LogCaptureFixture):
    template = ChatTemplate(FORM + "{% if tools %}common{% endif %}", "", "", with_tools="{% if %}")
    assert template.render(HI, [WEATHER]) == "common"
    assert "conversations with tools use the default chat template" in caplog.text


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 10000 + "1" + ")" * 10000 + " }}",
        "{% if a %}" * 150 + "{% endif %}" * 150,
        " " * (MAX_TEMPLATE + 1),
    ],
    ids=["parentheses", "blocks", "long"],
)
def test_a_template_that_nests_too_deep_or_is_too_long_is_refused(source: str):
    with pytest.raises(RequestError, match="the model's chat template can't be used"):
        ChatTemplate(source, "", "").render(HI)


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Renderer]:
    """One that waits for a second only."""
    made = Renderer(1.0)
    monkeypatch.setattr(template_module, "RENDERER", made)
    yield made
    made.close()


ENDLESS = "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}"


@pytest.mark.usefixtures("renderer")
def test_a_prompt_that_takes_too_long_is_refused_and_the_next_is_not():
    template = ChatTemplate("{% if messages[0].content == 'x' %}" + ENDLESS + "{% endif %}done", "", "")
    with pytest.raises(RequestError, match=r"^messages: the model's chat template takes too long for it$"):
        template.render((ChatTurn("user", "x"),))
    assert template.render(HI) == "done"


@pytest.mark.usefixtures("renderer")
@pytest.mark.parametrize("source", [ENDLESS, "{{ lipsum(n=10000000) }}", "{{ 9|string|indent(65536 * 65536) }}"])
def test_a_template_that_never_ends_is_not_used(source: str):
    with pytest.raises(RequestError, match=r"it takes longer than 1 s|MemoryError"):
        ChatTemplate(source, "", "").render(HI)


@pytest.mark.usefixtures("renderer")
def test_a_template_gets_no_more_memory_than_its_limit():
    template = ChatTemplate("{% if messages[0].content == 'x' %}{{ 'x'.ljust(10 ** 12) }}{% endif %}done", "", "")
    with pytest.raises(RequestError, match="rejected it: MemoryError"):
        template.render((ChatTurn("user", "x"),))
    assert template.render(HI) == "done"


def test_a_renderer_that_was_killed_is_started_again(renderer: Renderer):
    template = ChatTemplate("{{ messages[0].content }}", "", "")
    assert renderer._process is not None
    renderer._process.kill()
    with pytest.raises(RequestError, match="its rendering was killed, probably since memory was short"):
        template.render(HI)
    assert template.render(HI) == HI[0].content


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "too many steps"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
            "too many steps",
        ),
        ("{{ 'a' * 1000000 }}", "multiplies by more than 65536"),
        ("{% set x = 9 ** 999999 %}", "multiplies by more than 65536"),
        (
            "{% set n = namespace(s='abc') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
            "a text of more than",
        ),
        (
            "{% set n = namespace(s='abc') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
            "a text of more than",
        ),
        ("{{ messages.clear() }}", "unsafe"),
    ],
)
def test_what_would_take_too_long_or_leave_the_sandbox_is_refused(source: str, said: str):
    with pytest.raises(RequestError, match=f"rejected it: .*{said}"):
        told(source)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{% if %}", "line 1: "),
        (b"\xff", "can't decode"),
        (b" " * (MAX_TEMPLATE + 1), f"larger than {MAX_TEMPLATE} bytes"),
        (None, "No such file"),
    ],
    ids=["syntax", "encoding", "long", "absent"],
)
def test_an_operators_template_is_checked(data: bytes | None, said: str, tmp_path: Path):
    path = tmp_path / "chat.jinja"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"chat_template .*: .*{said}.*: name a "):
        read(str(path))


def test_an_operators_template_is_read(tmp_path: Path):
    path = tmp_path / "chat.jinja"
    path.write_text("{{ 1 }}é")
    assert read(str(path)) == "{{ 1 }}é"
