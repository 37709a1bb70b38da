"""What the grammar of a JSON schema lets through satisfies the schema; what no grammar enforces is refused."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Annotated, Any, Literal

import jsonschema
import pytest
import regex
from daemon import Daemon
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from umaserve.engine import gbnf, json_schema, number_range
from umaserve.engine.grammar import _Converter, gbnf_of_schema
from umaserve.engine.literals import one_of
from umaserve.errors import RequestError

ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def matcher(grammar: str) -> regex.Pattern[str]:
    """``grammar`` as a regular expression, a group for each rule."""
    parts = []
    for kind, text in gbnf._tokens(grammar):
        match kind:
            case "define":
                parts.append(f"{')' if parts else ''}(?P<r_{text.replace('-', '_')}>")
            case "name":
                parts.append(f"(?&r_{text.replace('-', '_')})")
            case "literal":
                plain = regex.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text[1:-1])
                parts.append(f"(?:{regex.escape(plain)})")
            case "mark" if text == "(":
                parts.append("(?:")
            case "class" | "repeat" | "mark":
                parts.append(text)
    return regex.compile(f"(?(DEFINE){''.join(parts)}))(?&r_root)")


def of(schema: object) -> regex.Pattern[str]:
    return matcher(gbnf_of_schema(json.dumps(schema)))


def refusal(schema: object) -> str:
    with pytest.raises(RequestError) as caught:
        gbnf_of_schema(json.dumps(schema))
    return caught.value.message


def satisfies(text: str, schema: Any) -> bool:
    value = json.loads(text, parse_float=Decimal)
    return jsonschema.Draft202012Validator(schema).is_valid(value)


# -- numbers ---------------------------------------------------------------------------------------------------------

LARGEST = number_range.LARGEST
WHOLE = st.integers(-130, 130) | st.integers(-LARGEST, LARGEST)
NEAR = st.sampled_from([-100, -11, -10, -1, 0, 1, 9, 10, 11, 99, 100])


@given(WHOLE, WHOLE, st.lists(WHOLE), st.lists(NEAR))
def test_a_range_of_integers_is_just_that(one: int, other: int, numbers: list[int], near: list[int]):
    low, high = sorted((one, other))
    matches = matcher(f"root ::= {number_range.integers(low, high)}").fullmatch
    for n in [low, low - 1, high, high + 1, -low, -high, *numbers, *(low + n for n in near), *(high + n for n in near)]:
        assert bool(matches(str(n))) is (low <= n <= high)
        assert not matches(f"0{n}")
        assert not matches(f"{n}.0")


def test_every_small_range_of_integers_is_just_that():
    numbers = range(-130, 131)
    edges = (-120, -101, -100, -99, -20, -10, -9, -1, 0, 1, 5, 9, 10, 19, 99, 100, 110, 125)
    for low in edges:
        for high in (edge for edge in edges if edge >= low):
            matches = matcher(f"root ::= {number_range.integers(low, high)}").fullmatch
            assert [n for n in numbers if matches(str(n))] == list(range(low, high + 1))


BOUND = st.integers(-130, 130) | st.floats(-130, 130) | st.just(0)
KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


@given(st.dictionaries(st.sampled_from(KEYWORDS), BOUND, min_size=1), st.lists(st.integers(-140, 140)))
def test_bounds_of_integers_mean_what_the_standard_says(bounds: dict[str, Any], numbers: list[int]):
    schema = {"type": "integer", **bounds}
    numbers += [int(bound) + near for bound in bounds.values() for near in (-1, 0, 1)]
    if not any(satisfies(str(n), schema) for n in range(-140, 141)):
        assert "between them" in refusal(schema)
        return
    matches = of(schema).fullmatch
    for n in numbers:
        assert bool(matches(str(n))) is satisfies(str(n), schema)


WHOLE_BOUND = st.integers(-12, 12) | st.integers(-12, 12).map(float)
FRACTIONS = st.sampled_from(["", ".0", ".00", ".5", ".05", ".50", ".999", ".0000000000000001", ".0000000000000000"])


@example(bounds={"exclusiveMinimum": -1, "exclusiveMaximum": 0}, numbers=[(0, "")] * 20)
@given(
    st.dictionaries(st.sampled_from(KEYWORDS), WHOLE_BOUND, min_size=1),
    st.lists(st.tuples(st.integers(-13, 13), FRACTIONS), min_size=20),
)
def test_whole_bounds_of_numbers_mean_what_the_standard_says(bounds: dict[str, Any], numbers: list[tuple[int, str]]):
    schema = {"type": "number", **bounds}
    texts = [f"{whole}{fraction}" for whole, fraction in numbers] + [
        f"-0{fraction}5" for _, fraction in numbers if fraction
    ]
    between = ["-0.5", *(f"{n}{half}" for n in range(-13, 14) for half in ("", ".5"))]
    if not any(satisfies(text, schema) for text in between):
        assert "between them" in refusal(schema)
        return
    matches = of(schema).fullmatch
    for text in texts:
        if len(text.partition(".")[2]) <= 16:
            assert bool(matches(text)) is satisfies(text, schema), text


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, [0, -LARGEST, LARGEST], [LARGEST + 1, -LARGEST - 1]),
        ({"minimum": 100}, [100, LARGEST], [99, -100, LARGEST + 1]),
        ({"exclusiveMaximum": -5}, [-6, -LARGEST], [-5, 6, 0]),
        ({"minimum": 1e300 * -1, "maximum": 3.7}, [3, 0, -1], [4]),
        ({"multipleOf": 1, "minimum": 7, "maximum": 7}, [7], [6, 8]),
    ],
)
def test_a_range_ends_at_16_digits_on_either_side(bounds: dict, inside: list[int], outside: list[int]):
    matches = of({"type": "integer", **bounds}).fullmatch
    assert [n for n in [*inside, *outside] if matches(str(n))] == inside


# -- everything else that is enforced --------------------------------------------------------------------------------

TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {"tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}},
}
NAMES = {
    "type": "object",
    "properties": {
        "tag": {"type": "string", "maxLength": 1},
        "integral_part": {"enum": ["x"]},
        "number": {"type": "integer", "minimum": 5},
        "other": {"$ref": "#/$defs/tag"},
        "value": {"$ref": "#/$defs/value"},
        "any": {},
    },
    "$defs": {"tag": {"const": 7}, "value": {"type": "integer", "maximum": 3}},
}
BASES = {
    "$defs": {
        "animal": {"type": "object", "properties": {"name": {"enum": ["n"]}}, "required": ["name"]},
        "pet": {"allOf": [{"$ref": "#/$defs/animal"}, {"properties": {"age": {"type": "integer", "minimum": 0}}}]},
    },
    "allOf": [{"$ref": "#/$defs/pet"}, {"description": "a dog"}],
    "properties": {"barks": {"type": "boolean"}},
    "unevaluatedProperties": False,
}

ENFORCED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, ['{"a": [1, "b"]}', "{}"], ["1", '"a"']),
    ({"title": "Any", "default": 3}, ["1", '"a"', "null", "[{}]"], ["a"]),
    ({"type": ["integer", "null"], "minimum": 3, "maxLength": 1}, ["3", "null"], ["2", '""']),
    ({"type": ["string", "null"], "enum": ["a", None, 3]}, ['"a"', "null"], ['"b"', "3"]),
    ({"type": "integer", "enum": [1, 1.5, True]}, ["1"], ["1.5", "true"]),
    ({"enum": ['"\\é\n', {"a": [None]}]}, [r'"\"\\é\n"', '{"a": [null]}'], [r'"\"\é\n"']),
    ({"const": "a", "enum": ["b", "a"], "type": "string"}, ['"a"'], ['"b"']),
    ({"minLength": 1, "maxLength": 2}, ['"a"', '"ab"'], ['""', '"abc"', '"\n"']),
    ({"type": "string", "format": "email", "minLength": 1}, ['"a"'], ['""']),
    ({"type": "string", "format": "date"}, ['"2024-12-31"'], ['"2024-13-31"', '"a"']),
    ({"pattern": "^a.c$", "format": "date"}, ['"abc"', r'"a\"c"'], ['"a"c"', '"a\nc"', '"ac"']),
    ({"type": "array", "minItems": 1, "maxItems": 2}, ["[1]", '[1, "a"]'], ["[]", "[1,2,3]"]),
    ({"items": {"type": "integer", "maximum": 1}, "uniqueItems": False}, ["[]", "[1,0]"], ["[2]"]),
    ({"items": False}, ["[]"], ["[1]"]),
    (
        {"type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [{"const": 1}, {"const": 2}], "items": True},
        ["[1,2]"],
        ["[1]", "[1,2,3]", "[2,2]"],
    ),
    (
        {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"type": "null"}},
        ['{"a":1}', '{"b":null}', '{"a":1,"b":null}'],
        ['{"b":1}'],
    ),
    (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"maximum": 1}},
        ['{"b":1}', "{}"],
        ['{"b":2}'],
    ),
    ({"additionalProperties": False}, ["{}"], ['{"a":1}']),
    (
        {"properties": {"": {"const": 1}, "*": {"const": 2}, "c": {"const": 3}}, "additionalProperties": True}
        | {"required": ["*"]},
        ['{"*":2}', '{"*":2,"":1}', '{"*":2,"c":3}', '{"*":2,"":1,"c":3,"d":[],"e":4}'],
        ['{"*":2"":1}', '{"":1}', '{"*":2,}', "{}", '{"*":3}'],
    ),
    (
        {
            "type": "object",
            "oneOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"type": "object", "const": {"b": 2}}],
        },
        ['{"a":1}', '{"b": 2}'],
        ["{}", "1"],
    ),
    ({"properties": {"minimum": {"type": "string"}, "not": {"const": 1}}}, ['{"minimum":"a","not":1}'], ['{"not":2}']),
    ({"type": "integer", "allOf": [{"minimum": 3}]}, ["3"], ["2", "3.5"]),
    (
        {"items": {"$ref": "#/definitions/a~1b/anyOf/0"}, "definitions": {"a/b": {"anyOf": [{"const": 1}]}}},
        ["[1]"],
        ["[2]"],
    ),
    (TREE, ["{}", '{"next":{"next":{}}}'], ['{"next":1}']),
    ({"type": "array", "items": {"$ref": "#"}}, ["[[],[[]]]"], ["[1]"]),
    (
        NAMES,
        ['{"tag":"a","integral_part":"x","number":6,"other":7,"value":3,"any":4.5}', '{"any":true}'],
        ['{"other":"a"}', '{"number":4}', '{"value":4}', '{"any":x}'],
    ),
    (BASES, ['{"name":"n","barks":true,"age":0}', '{"name":"n"}'], ['{"barks":true}', '{"name":"n","age":-1}']),
]


@pytest.mark.parametrize(("schema", "inside", "outside"), ENFORCED, ids=range(len(ENFORCED)))
def test_what_a_schema_says_is_enforced(schema: dict[str, Any], inside: list[str], outside: list[str]):
    matches = of(schema).fullmatch
    assert [text for text in [*inside, *outside] if matches(text)] == inside
    assert all(satisfies(text, schema) for text in inside)


class Item(BaseModel):
    kind: Literal["item"] = "item"
    size: int = Field(ge=1, lt=10)
    share: float | None = Field(None, ge=0, le=1)


class Box(BaseModel):
    """A box of boxes and items."""

    kind: Literal["box"]
    label: str | None = Field(default=None, max_length=3, description="what is written on it")
    inside: list[Annotated[Item | Box, Field(discriminator="kind")]] = Field(max_length=3)
    at: tuple[int, int]
    extra: Any = None


def test_pydantics_schemas_are_enforced():
    schema = Box.model_json_schema()
    matches = of(schema).fullmatch
    item = '{"size":9,"kind":"item","share":0.5}'
    inside = [
        '{"kind":"box","inside":[],"at":[1,2]}',
        f'{{"kind":"box","inside":[{item},{{"kind":"box","inside":[],"at":[1,2]}}],"at":[1,2],"label":null,"extra":[1]}}',
    ]
    for text in inside:
        assert matches(text)
        Box.model_validate_json(text)
    for wrong in (item.replace("9", "10"), item.replace("0.5", "1.5"), item.replace("9", "0"), "{}"):
        assert not matches(f'{{"kind":"box","inside":[{wrong}],"at":[1,2]}}')


# -- refusals --------------------------------------------------------------------------------------------------------

UNENFORCED = "expected to be absent, since a grammar can't enforce it"
IN_PAIRS = r"expected brackets and braces in pairs, others escaped as in \], and no lone backslash"
NOT_IN_PAIRS = ["^]$", "^a]$", "^}$", r"^\{a}$", "^[]]]$", "^[^]]$", "^(a])$", "^[a$", "^a{$", "^a{2$", "^a{1_000}$"]
REFUSED: list[tuple[object, str]] = [
    *(
        ({"type": "object", "properties": {"n": {key: item}}}, f"json_schema.properties.n.{key}: {UNENFORCED}")
        for key, item in {
            "multipleOf": 5,
            "uniqueItems": True,
            "contains": {},
            "minProperties": 1,
            "maxProperties": 1,
            "propertyNames": {"maxLength": 3},
            "patternProperties": {"^a": {}},
            "dependentRequired": {"a": ["b"]},
            "dependentSchemas": {"a": {}},
            "dependencies": {"a": ["b"]},
            "unevaluatedProperties": False,
            "unevaluatedItems": False,
            "not": {},
            "if": {},
            "$dynamicRef": "#a",
            "$recursiveRef": "#",
        }.items()
    ),
    ({"type": "number", "multipleOf": 1}, f"json_schema.multipleOf: {UNENFORCED}"),
    ({"type": ["object", "null"], "minProperties": 2}, f"json_schema.minProperties: {UNENFORCED}"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}, f"json_schema.$defs.a.not: {UNENFORCED}"),
    ({"anyOf": [{}, {"if": {}}]}, f"json_schema.anyOf[1].if: {UNENFORCED}"),
    (
        {"anyOf": [{}], "maximum": 3},
        "json_schema.maximum: expected to be absent, since a grammar can't enforce it beside anyOf",
    ),
    ({"anyOf": [{}], "oneOf": [{}]}, "json_schema.oneOf: expected to be absent"),
    ({"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": {}}}, "json_schema.maxLength: expected to be absent"),
    ({"enum": [1, 2], "maximum": 1}, "json_schema.maximum: expected to be absent"),
    ({"type": "string", "pattern": "^a*$", "maxLength": 3}, "json_schema.maxLength: expected to be absent"),
    ({"type": "string", "format": "date", "minLength": 3}, "json_schema.minLength: expected to be absent"),
    (
        {"type": "string", "pattern": "a"},
        'json_schema.pattern: expected a pattern of the whole text, from "^" to "$", got a',
    ),
    ({"type": "string", "pattern": "^(?=a)$"}, "json_schema: expected a schema that can be made a grammar"),
    ({"type": "string", "pattern": "^*$"}, "json_schema: expected a schema that can be made a grammar"),
    *(
        ({"type": "string", "pattern": pattern}, f"json_schema.pattern: {IN_PAIRS}")
        for pattern in [*NOT_IN_PAIRS, "^a\\$"]
    ),
    ({"properties": {"a": {"pattern": "^]$"}}}, f"json_schema.properties.a.pattern: {IN_PAIRS}, got ]"),
    ({"type": "number", "maximum": 0.5}, "json_schema.maximum: expected a whole number where type is number"),
    ({"type": "integer", "maximum": True}, "json_schema.maximum: expected a number, got true"),
    ({"type": "integer", "maximum": "3"}, "json_schema.maximum: expected a number, got 3"),
    ('{"type": "integer", "maximum": 1e999}', "json_schema.maximum: expected a number, got Infinity"),
    ('{"type": "integer", "maximum": NaN}', "json_schema.maximum: expected a number, got NaN"),
    (
        {"type": "integer", "minimum": 3, "maximum": 2},
        "json_schema: expected bounds with a number of at most 16 digits",
    ),
    ({"type": "integer", "minimum": 10**16}, "json_schema: expected bounds with a number of at most 16 digits"),
    ({"type": "number", "minimum": 3, "exclusiveMaximum": 3}, "json_schema: expected bounds with a number"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "json_schema: expected bounds with a number"),
    ({"type": "nonsense"}, "json_schema.type: expected one or more of object,"),
    ({"type": []}, "json_schema.type: expected one or more of object,"),
    ({"type": {"a": 1}}, "json_schema.type: expected one or more of object,"),
    ([], "json_schema: expected a schema that something satisfies, got []"),
    ({"properties": {"a": False}}, "json_schema.properties.a: expected a schema that something satisfies, got false"),
    ({"properties": []}, "json_schema.properties: expected an object, got []"),
    ({"properties": {"a": {}}, "required": ["a", "b"]}, "json_schema.required[1]: expected the name of one of the"),
    ({"required": "a"}, "json_schema.required: expected an array"),
    ({"properties": {f"p{n}": {} for n in range(501)}}, "json_schema.properties: expected at most 500"),
    ({"anyOf": []}, "json_schema.anyOf: expected an array of at least 1, got []"),
    ({"oneOf": {}}, "json_schema.oneOf: expected an array of at least 1, got {}"),
    ({"enum": []}, "json_schema.enum: expected an array of at least 1"),
    ({"type": "string", "enum": [1]}, "json_schema.enum: expected a value that satisfies the rest of the schema"),
    ({"const": 1, "enum": [2]}, "json_schema.const: expected a value that satisfies the rest of the schema"),
    ({"type": "string", "anyOf": [{"type": "integer"}]}, "json_schema.anyOf[0]: expected type string, as the schema"),
    (
        {"type": "array", "minItems": 3, "maxItems": 2},
        "json_schema.minItems: expected at most maxItems, which is 2, got 3",
    ),
    ({"type": "array", "maxItems": True}, "json_schema.maxItems: expected a whole number from 0 to 1000, got true"),
    ({"type": "array", "prefixItems": [{}], "minItems": 2}, "json_schema.prefixItems: expected as many as minItems"),
    ({"type": "array", "prefixItems": {}}, "json_schema.prefixItems: expected an array of schemas, got {}"),
    ({"$ref": 1}, 'json_schema.$ref: expected a reference within the schema ("#/…"), got 1'),
    ({"$ref": "#a"}, 'json_schema.$ref: expected a reference by path ("#/…"), got #a'),
    (
        {"items": {"$ref": "#/none"}},
        "json_schema: expected a schema at #/none, as json_schema.items.$ref has it, got none",
    ),
    ({"$ref": "#"}, "json_schema: expected no left recursion"),
    (
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {}}}]},
        "json_schema.allOf[1].properties.a: expected a property that no other part",
    ),
    (
        {"allOf": [{"properties": {"a": {}}}, {"additionalProperties": False}]},
        "json_schema.allOf[1].additionalProperties: expected to be absent",
    ),
    ({"allOf": [{"required": ["a"]}, {"anyOf": [{}]}]}, "json_schema.allOf[1].anyOf: expected to be absent"),
    ({"allOf": [{"minLength": 3}, {"type": "string"}]}, "json_schema.allOf[0].minLength: expected to be absent"),
    ({"allOf": [{"$ref": "#"}, {"properties": {}}, {"$ref": "#"}]}, "json_schema.allOf[0].$ref: expected each part"),
    (
        {"$defs": {"b": {"properties": {f"p{n}": {} for n in range(99)}}}}
        | {"items": {"anyOf": [{"allOf": [{"$ref": "#/$defs/b"}, {"required": ["p1"]}]}] * 99}},
        "expected at most 5000 schemas once each allOf is put together",
    ),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_enforced_or_malformed_is_refused_by_its_path(schema: object, message: str):
    with pytest.raises(RequestError) as caught:
        gbnf_of_schema(schema if isinstance(schema, str) else json.dumps(schema))
    assert message in caught.value.message
    assert not regex.search("Error|Exception", caught.value.message)


def test_the_callers_name_for_the_schema_begins_every_path():
    with pytest.raises(RequestError, match=r"^a\.b\.multipleOf: expected"):
        gbnf_of_schema('{"multipleOf": 2}', "a.b")


SAYS_NOTHING = {
    **{"$schema": "x", "$id": "x", "$comment": "x", "title": "x", "description": "x", "default": {"not": 1}},
    **{"examples": [1], "deprecated": True, "readOnly": True, "writeOnly": True, "contentEncoding": "base64"},
    **{
        "format": "email",
        "discriminator": {},
        "x-order": 1,
        "nullable": True,
        "minContains": 2,
        "then": {},
        "else": {},
    },
    **{"uniqueItems": False, "minProperties": 0, "patternProperties": {}, "dependentRequired": {}, "not": False},
    **{"unevaluatedProperties": True, "propertyNames": {}, "required": [], "minLength": 0},
}


@pytest.mark.parametrize(
    "beside",
    [
        *({"type": kind} for kind in ("object", "array", "string", "number", "integer", "null")),
        {"anyOf": [{"const": 1}]},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"const": 1}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}},
        {"enum": [1]},
    ],
    ids=str,
)
def test_what_only_describes_changes_nothing(beside: dict[str, Any]):
    assert gbnf_of_schema(json.dumps(SAYS_NOTHING | beside)) == gbnf_of_schema(json.dumps(beside))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1005) | st.floats() | st.sampled_from(["", "a", "^a{2}$", "#", "#/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*json_schema.OF_ALL, *set().union(*json_schema.OF_KIND.values()), "a"]), inner
        )
        | st.fixed_dictionaries({"type": st.sampled_from([*json_schema.OF_KIND, "integer"])}).map(dict[str, Any])
    ),
)


@settings(deadline=None)
@given(JSON)
def test_anything_is_a_grammar_or_a_bad_request(schema: Any):
    text = json.dumps(schema)
    try:
        grammar = gbnf_of_schema(text)
    except RequestError as error:
        grammar = 'root ::= ""'
        said = error.message
    else:
        said = "json_schema"
    gbnf.check(grammar)
    assert said.startswith("json_schema")


# -- listed texts ----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.text('ab"\\é', max_size=4), min_size=1, max_size=30), st.text('ab"\\é', max_size=4))
@example(["a" * n for n in range(300)], "a" * 300)
def test_one_of_the_texts_matches_those_and_no_other(texts: list[str], other: str):
    found = matcher(f"root ::= {one_of(texts)}")
    for text in [*texts, other]:
        assert bool(found.fullmatch(text)) is (text in texts)


# -- patterns --------------------------------------------------------------------------------------------------------


class NotAdvancing(Exception):
    """The converter reads a pattern without an end."""


class Counted(str):
    """A text from which ``limit`` characters can be read, one at a time, and as many from each part of it."""

    limit = 0

    def __getitem__(self, key: Any) -> str:
        if isinstance(key, slice):
            part = Counted(super().__getitem__(key))
            part.limit = self.limit
            return part
        self.limit -= 1
        if self.limit < 0:
            raise NotAdvancing(self)
        return super().__getitem__(key)


@settings(deadline=None)
@given(st.text(st.sampled_from('\\[](){}^$|?*+.,-0_a"\n'), max_size=12).map(lambda inner: f"^{inner}$"))
@example(r"^\[\]\{\}[\]}]{2}$")
@example("^[^]$")
@example("^]$")
def test_every_pattern_is_refused_or_read_in_steps_bounded_by_its_length(pattern: str):
    schema = {"type": "string", "pattern": pattern}
    try:
        json_schema.reduce(schema, "json_schema")
    except RequestError:
        return
    counted = Counted(pattern)
    counted.limit = 10 * len(pattern)
    # What a pattern makes the converter raise is refused by its caller.
    with contextlib.suppress(AssertionError, IndexError, ValueError):
        _Converter({}).visit(schema | {"pattern": counted}, "")


# -- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 100, "maximum": 199},
        {"type": "integer", "minimum": -25, "exclusiveMaximum": -9.5},
        {"type": "number", "exclusiveMinimum": -1, "maximum": 0},
        {
            "type": "array",
            "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "minItems": 3,
            "maxItems": 3,
        },
        {"type": "object", "properties": {'é"\\': {"enum": ["\\"]}, "s": {"type": "string", "pattern": "^.{3}$"}}}
        | {"required": ['é"\\', "s"]},
    ],
    ids=str,
)
def test_the_models_answers_satisfy_the_schema(daemon: Daemon, schema: dict[str, Any]):
    for seed in range(3):
        text = daemon.text("JSON:", json_schema=schema, max_tokens=100, temperature=2, seed=seed)
        assert satisfies(text, schema), text
