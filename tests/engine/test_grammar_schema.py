"""What the grammar of a JSON schema lets through satisfies the schema; what no grammar enforces is refused."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from daemon import Daemon
from grammars import allows
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from umaserve.core.errors import RequestError
from umaserve.engine.grammar import json_schema
from umaserve.engine.grammar.grammar import of_schema


def of(schema: object) -> Callable[[str], bool]:
    return allows(of_schema(json.dumps(schema)), "json_schema")


def refusal(schema: object) -> str:
    with pytest.raises(RequestError) as caught:
        allows(of_schema(schema if isinstance(schema, str) else json.dumps(schema)), "json_schema")
    return caught.value.message


def satisfies(text: str, schema: Any) -> bool:
    value = json.loads(text, parse_float=Decimal)
    return jsonschema.Draft202012Validator(schema).is_valid(value)


# -- numbers ---------------------------------------------------------------------------------------------------------

BOUND = st.integers(-130, 130) | st.just(0)
KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


@given(st.dictionaries(st.sampled_from(KEYWORDS), BOUND, min_size=1), st.lists(st.integers(-140, 140)))
def test_bounds_of_integers_mean_what_the_standard_says(bounds: dict[str, Any], numbers: list[int]):
    schema = {"type": "integer", **bounds}
    numbers += [int(bound) + near for bound in bounds.values() for near in (-1, 0, 1)]
    if not any(satisfies(str(n), schema) for n in range(-140, 141)):
        assert refusal(schema).startswith("json_schema: expected")
        return
    matches = of(schema)
    for n in numbers:
        assert matches(str(n)) is satisfies(str(n), schema)
        assert not matches(f"{n}.5")


FRACTIONS = st.sampled_from(["", ".5", ".05", ".999", ".0000000000000001"])


@given(
    st.dictionaries(st.sampled_from(KEYWORDS), st.integers(-12, 12) | st.sampled_from([-0.5, 0.25]), min_size=1),
    st.lists(st.tuples(st.integers(-13, 13), FRACTIONS), min_size=20),
)
def test_no_number_beyond_its_bounds_is_allowed(bounds: dict[str, Any], numbers: list[tuple[int, str]]):
    schema = {"type": "number", **bounds}
    try:
        matches = of(schema)
    except RequestError:
        return
    for whole, fraction in numbers:
        text = f"{whole}{fraction}"
        assert satisfies(text, schema) or not matches(text)


@pytest.mark.parametrize(
    ("bounds", "key"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.25}, "exclusiveMinimum"),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 1.25}, "exclusiveMinimum"),
        ({"minimum": -1.5, "exclusiveMaximum": -1}, "exclusiveMaximum"),
    ],
)
def test_bounds_that_would_be_let_through_are_refused(bounds: dict[str, Any], key: str):
    assert refusal({"type": "number", **bounds}).startswith(f"json_schema.{key}: expected the other bound")


def test_what_an_enum_contains_need_not_be_a_schema():
    assert of({"enum": [{"allOf": 1, "$ref": 5}]})('{"allOf": 1, "$ref": 5}')


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
}

ABC: dict[str, Any] = {"type": "object", "properties": {name: {"type": "integer"} for name in "abc"}}
"""Closed, as long as nothing else describes the object."""

ENFORCED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, ['{"a": [1, "b"]}', "{}"], ["1", '"a"']),
    ({"title": "Any", "default": 3}, ["1", '"a"', "null", "[{}]"], ["a"]),
    ({"type": ["integer", "null"], "minimum": 3, "maxLength": 1}, ["3", "null"], ["2", '""']),
    ({"type": ["string", "null"], "enum": ["a", None, 3]}, ['"a"', "null"], ['"b"', "3"]),
    ({"type": "integer", "enum": [1, 1.5, True]}, ["1"], ["1.5", "true"]),
    ({"enum": ['"\\é\n', {"a": [None]}]}, [r'"\"\\é\n"', '{"a": [null]}'], [r'"\"\é\n"']),
    ({"const": "a", "enum": ["b", "a"], "type": "string"}, ['"a"'], ['"b"']),
    ({"minLength": 1, "maxLength": 2}, ['"a"', '"ab"'], ['""', '"abc"', '"\n"']),
    ({"type": "string", "format": "email"}, ['"a@b.co"'], ['""', '"a"']),
    ({"type": "string", "format": "phone", "minLength": 1}, ['"a"'], ['""']),
    ({"type": "string", "format": "date"}, ['"2024-12-31"'], ['"2024-13-31"', '"a"']),
    ({"pattern": "^a.c$"}, ['"abc"', r'"a\"c"'], ['"a"c"', '"a\nc"', '"ac"']),
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
        ['{"*":2}', '{"":1,"*":2}', '{"*":2,"c":3}', '{"":1,"*":2,"c":3,"d":[],"e":4}'],
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
    ({"multipleOf": 5, "type": "integer"}, ["5", "-10", "0"], ["3"]),
    ({"type": "object", "minProperties": 1}, ['{"a":1}'], ["{}"]),
    (
        {"patternProperties": {"^a": {"const": 1}}, "additionalProperties": False},
        ['{"ab":1}', "{}"],
        ['{"ab":2}', '{"b":1}'],
    ),
    ({"anyOf": [{"minimum": 1}, {"const": 0}], "type": "integer", "maximum": 3}, ["3", "0"], ["4", "-1"]),
    ({"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": {"type": "string"}}}, ['"abc"'], ['"abcd"']),
    ({"enum": [1, 2], "maximum": 1}, ["1"], ["2"]),
    ({"type": "string", "pattern": "^a*$", "maxLength": 3}, ['"aaa"'], ['"aaaa"', '"b"']),
    ({"type": "string", "pattern": "a"}, ['"a"', '"bab"'], ['"b"']),
    ({"type": "number", "maximum": 0.5}, ["0.5", "0.25", "-3"], ["0.6", "1"]),
    (
        {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {"maximum": 2}}}]},
        ['{"a":2}'],
        ['{"a":3}'],
    ),
    ({"allOf": [{"minLength": 3}, {"type": "string"}]}, ['"abc"'], ['"ab"', "1"]),
    (TREE, ["{}", '{"next":{"next":{}}}'], ['{"next":1}']),
    ({"type": "array", "items": {"$ref": "#"}}, ["[[],[[]]]"], ["[1]"]),
    (
        NAMES,
        ['{"tag":"a","integral_part":"x","number":6,"other":7,"value":3,"any":4.5}', '{"any":true}'],
        ['{"other":"a"}', '{"number":4}', '{"value":4}', '{"any":x}'],
    ),
    ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, ['"a"', '"ab"'], ['""', '"abc"']),
    ({"type": "array", "minItems": 1.0, "maxItems": 1.0}, ["[1]"], ["[]", "[1,2]"]),
    (
        {**ABC, "dependentRequired": {"a": ["b"]}},
        ["{}", '{"b":1}', '{"a":1,"b":1}', '{"a":1,"b":1,"c":1}'],
        ['{"a":1}', '{"a":1,"c":1}', '{"z":1}'],
    ),
    (
        {**ABC, "dependencies": {"a": ["b"]}, "minProperties": 1},
        ['{"b":1}', '{"a":1,"b":1}'],
        ["{}", '{"a":1}', '{"z":1}'],
    ),
    (
        {**ABC, "additionalProperties": True, "dependencies": {"a": ["b"], "b": {"properties": {"c": {"const": 2}}}}},
        ['{"b":1,"c":2}', '{"a":1,"b":1,"c":2}', '{"c":1}', '{"z":1}'],
        ['{"a":1}', '{"b":1,"c":1}', '{"a":1,"b":1,"c":1}'],
    ),
    (
        {**ABC, "not": {"required": ["a", "b"]}},
        ["{}", '{"a":1}', '{"b":1}', '{"a":1,"c":1}'],
        ['{"a":1,"b":1}', "1", '{"a":1,"b":1,"c":1}'],
    ),
    (
        {**ABC, "minProperties": 2},
        ['{"a":1,"b":1}', '{"b":1,"c":1}', '{"a":1,"b":1,"c":1}'],
        ["{}", '{"a":1}', '{"c":1}'],
    ),
    (
        {**ABC, "required": ["b"], "minProperties": 2.0, "maxProperties": 2},
        ['{"a":1,"b":1}', '{"b":1,"c":1}'],
        ['{"b":1}', '{"a":1,"c":1}', '{"a":1,"b":1,"c":1}'],
    ),
    ({**ABC, "minProperties": 0, "maxProperties": 9}, ["{}", '{"a":1,"b":1,"c":1}'], ['{"z":1}']),
    (
        {"type": "object", "propertyNames": {"pattern": "^[a-b]$"}, "additionalProperties": {"const": 1}},
        ["{}", '{"a":1,"b":1}'],
        ['{"a":2}', '{"c":1}', '{"ab":1}'],
    ),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, ["{}", '{"a":{}}'], ['{"c":1}']),
    ({"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}}, ['{"é":1}'], ['{"":1}', '{"abc":1}']),
    ({"properties": {"a": {}}, "required": ["b"]}, ['{"b":1}', '{"a":1,"b":1}'], ['{"a":1}', "{}"]),
    (BASES, ['{"name":"n","age":0,"barks":true}', '{"name":"n"}'], ['{"barks":true}', '{"name":"n","age":-1}']),
]


@pytest.mark.parametrize(("schema", "inside", "outside"), ENFORCED, ids=range(len(ENFORCED)))
def test_what_a_schema_says_is_enforced(schema: dict[str, Any], inside: list[str], outside: list[str]):
    matches = of(schema)
    assert [text for text in [*inside, *outside] if matches(text)] == inside
    assert all(satisfies(text, schema) for text in inside)


SOME = st.sampled_from([[], ["a"], ["b"], ["c"], ["a", "b"], ["c", "a"]])
OF_NAMES = st.fixed_dictionaries(
    {},
    optional={
        "required": SOME,
        "dependentRequired": st.fixed_dictionaries({}, optional={"a": SOME, "b": SOME}),
        "dependencies": st.fixed_dictionaries({}, optional={"b": SOME, "c": st.just({"properties": {"a": False}})}),
        "not": SOME.filter(bool).map(lambda names: {"required": names}),
        "minProperties": st.integers(0, 3),
        "maxProperties": st.integers(0, 3),
    },
)


@given(OF_NAMES)
def test_rules_about_names_hold_for_each_set_of_names(rules: dict[str, Any]):
    schema = {**ABC, "additionalProperties": False, **rules}
    # The newer standards have no dependencies.
    validator = jsonschema.Draft7Validator({**schema, "allOf": [{"dependencies": rules.get("dependentRequired", {})}]})
    objects = [dict.fromkeys(names, 1) for n in range(4) for names in itertools.combinations("abc", n)]
    valid = list(map(validator.is_valid, objects))
    try:
        matches = of(schema)
    except RequestError:
        assert not any(valid)
        return
    assert [matches(json.dumps(one)) for one in objects] == valid


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
    matches = of(schema)
    item = '{"kind":"item","size":9,"share":0.5}'
    inside = [
        '{"kind":"box","inside":[],"at":[1,2]}',
        f'{{"kind":"box","label":null,"inside":[{item},{{"kind":"box","inside":[],"at":[1,2]}}],"at":[1,2],"extra":[1]}}',
    ]
    for text in inside:
        assert matches(text)
        Box.model_validate_json(text)
    for wrong in (item.replace("9", "10"), item.replace("0.5", "1.5"), item.replace("9", "0"), "{}"):
        assert not matches(f'{{"kind":"box","inside":[{wrong}],"at":[1,2]}}')


# -- refusals --------------------------------------------------------------------------------------------------------

UNENFORCED = "expected to be absent, since a grammar can't enforce it"
REFUSED: list[tuple[object, str]] = [
    *(
        ({"type": "object", "properties": {"n": {key: item}}}, f"json_schema.properties.n.{key}: {UNENFORCED}")
        for key, item in {
            "uniqueItems": True,
            "contains": {},
            "propertyNames": {"format": "uuid"},
            "dependentRequired": {"a": "b"},
            "dependentSchemas": {"a": ["b", 1]},
            "dependencies": [["a", "b"]],
            "unevaluatedProperties": False,
            "unevaluatedItems": False,
            "not": {},
            "if": {},
            "$dynamicRef": "#a",
            "$recursiveRef": "#",
        }.items()
    ),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}, f"json_schema.$defs.a.not: {UNENFORCED}"),
    ({"anyOf": [{}, {"if": {}}]}, f"json_schema.anyOf[1].if: {UNENFORCED}"),
    *(
        ({"type": "string", "pattern": pattern}, "json_schema: expected a grammar that llguidance can follow, but:")
        for pattern in ["^(?=a)$", "^*$", "^[a$", "^a{$", "^a{1_000}$"]
    ),
    ({"type": "integer", "maximum": True}, "json_schema: expected a grammar that llguidance can follow, but:"),
    ('{"type": "integer", "maximum": 1e999}', "json_schema: expected finite numbers"),
    ('{"type": "integer", "maximum": NaN}', "json_schema: expected finite numbers"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum (3) is greater than maximum (2)"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "contains no integer values"),
    ({"type": "nonsense"}, "json_schema.type: expected one or more of array,"),
    ({"type": {"a": 1}}, "json_schema.type: expected one or more of array,"),
    ({"type": []}, "json_schema: expected"),
    ([], "json_schema: expected a JSON schema, which is an object, got []"),
    ("{", "json_schema: expected a JSON schema, got"),
    ("[" * 100_000, "json_schema: expected a JSON schema, got"),
    ({"properties": []}, "json_schema.properties: expected an object, got []"),
    ({"properties": {"a": 1}}, "json_schema.properties.a: expected a schema, got 1"),
    ({"required": "a"}, "json_schema.required: expected an array of strings, got a"),
    ({"properties": {f"p{n}": {} for n in range(501)}}, "json_schema.properties: expected at most 500"),
    ({"anyOf": [{}] * 251}, "json_schema.anyOf: expected at most 250 schemas, got 251"),
    ({"anyOf": []}, "json_schema.anyOf: expected an array of at least 1, got []"),
    ({"oneOf": {}}, "json_schema.oneOf: expected an array of at least 1, got {}"),
    ({"enum": []}, "json_schema: expected"),
    ({"type": "string", "enum": [1]}, "incompatible types"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems (3) is greater than maxItems (2)"),
    ({"type": "array", "prefixItems": {}}, "json_schema.prefixItems: expected an array of at least 1, got {}"),
    ({"$ref": 1}, 'json_schema.$ref: expected a reference within the schema ("#/…"), got 1'),
    ({"$ref": "https://example.com/x"}, 'json_schema.$ref: expected a reference within the schema ("#/…")'),
    ({"items": {"$ref": "#/none"}}, "json_schema: expected a grammar that llguidance can follow, but: failed to"),
    ({"$ref": "#"}, "json_schema: expected"),
    (functools.reduce(lambda inner, _: {"items": inner}, range(70), {}), "expected at most 64 levels, got more"),
]


def references(levels: int, each: int) -> dict[str, Any]:
    """Options that are all the same, by many names: each text has as many readings."""
    defs: dict[str, Any] = {f"a{levels}": {"type": "array", "items": {"type": "integer"}}}
    for level in range(levels):
        defs[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/b{level}_{n}"} for n in range(each)]}
        defs |= {f"b{level}_{n}": {"$ref": f"#/$defs/a{level + 1}"} for n in range(each)}
    return {"$ref": "#/$defs/a0", "$defs": defs}


def merged(levels: int, each: int) -> dict[str, Any]:
    """Options of options that are put together with others, and so multiplied."""
    defs: dict[str, Any] = {f"a{levels}": {"type": "array"}}
    for level in range(levels):
        defs[f"a{level}"] = {"anyOf": [{"$ref": f"#/$defs/a{level + 1}", "maxItems": n} for n in range(each)]}
    return {"$ref": "#/$defs/a0", "$defs": defs}


UNBOUNDED = "json_schema: expected at most 1000 combinations of options"
TOO_SLOW = [
    ({"type": "integer", "multipleOf": 999_983}, "json_schema: expected multipleOf with a least common multiple of"),
    ({"type": "number", "multipleOf": 0.99991}, "json_schema: expected multipleOf with a least common multiple of"),
    ({"allOf": [{"multipleOf": prime} for prime in (97, 89, 83)]}, "at most 16666, in units of the last decimal place"),
    (
        {"prefixItems": [{"$ref": "#/$defs/m", "minimum": n} for n in range(200)]}
        | {"$defs": {"m": {"type": "integer", "multipleOf": 997}}},
        "expected multipleOf with a least common multiple of at most 248, ",
    ),
    (references(2, 200), "json_schema: expected fewer references among the options of anyOf"),
    (merged(2, 60), UNBOUNDED),
    (merged(20, 4), UNBOUNDED),
    ({"allOf": [{"anyOf": [{"maxLength": n} for n in range(40)]} for _ in range(2)]}, UNBOUNDED),
    (
        {"properties": {f"p{n}": {"type": "string"} for n in range(400)}},
        "json_schema.properties: expected at most 240 properties that are not required, got 400",
    ),
    (
        {"$ref": "#/$defs/a900", "$defs": {f"a{n + 1}": {"$ref": f"#/$defs/a{n}", "maxItems": 1} for n in range(900)}},
        "json_schema: expected at most 100 references that lead one to another",
    ),
]


@pytest.mark.parametrize(("schema", "message"), TOO_SLOW, ids=range(len(TOO_SLOW)))
def test_what_would_take_seconds_is_refused(schema: object, message: str):
    assert message in refusal(schema)


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": "number", "multipleOf": 0.01}, "1.25", "1.255"),
        ({"type": "integer", "multipleOf": 1000}, "3000", "300"),
        (references(2, 120), "[1]", "{}"),
        (merged(1, 30), "[]", "{}"),
        ({"anyOf": [{"type": "integer"}] * 200}, "1", '"1"'),
        ({"properties": {f"p{n}": {"type": "integer"} for n in range(240)}}, '{"p7":1,"p9":2}', '{"p9":1,"p7":2}'),
        (
            {"properties": {f"p{n}": {} for n in range(500)}, "required": [f"p{n}" for n in range(500)]},
            "{" + ",".join(f'"p{n}":{n}' for n in range(500)) + "}",
            "{}",
        ),
    ],
    ids=range(7),
)
def test_what_is_large_but_not_slow_is_followed(schema: dict[str, Any], inside: str, outside: str):
    matches = of(schema)
    assert matches(inside)
    assert not matches(outside)


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_enforced_or_malformed_is_refused_by_its_path(schema: object, message: str):
    assert message in refusal(schema)


def test_the_callers_name_for_the_schema_begins_every_path():
    with pytest.raises(RequestError, match=r"^a\.b\.uniqueItems: expected"):
        of_schema('{"uniqueItems": true}', "a.b")


SAYS_NOTHING = {
    **{"$id": "x", "$comment": "x", "title": "x", "description": "x", "default": {"not": 1}},
    **{"examples": [1], "deprecated": True, "readOnly": True, "writeOnly": True, "contentEncoding": "base64"},
    **{
        "format": "phone",
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
    plain, told = of(beside), of(SAYS_NOTHING | beside)
    for text in ("{}", "[]", '"a"', "1", "null", "2", '{"a":1}'):
        assert told(text) is plain(text)


KEYWORDS_OF_SCHEMAS = sorted(
    {
        *json_schema._NAMED,
        *json_schema._LISTED,
        *json_schema._SINGLE,
        *json_schema._UNENFORCED,
        *KEYWORDS,
        "$ref",
        "enum",
        "const",
        "type",
    }
    | {"required", "pattern", "format", "minLength", "maxItems", "multipleOf", "minProperties", "a"}
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1005) | st.floats() | st.sampled_from(["", "a", "^a{2}$", "#", "#/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYWORDS_OF_SCHEMAS), inner)
        | st.fixed_dictionaries({"type": st.sampled_from(sorted(json_schema.KINDS))}).map(dict[str, Any])
    ),
)


@given(JSON)
def test_anything_is_a_grammar_or_a_bad_request(schema: Any):
    try:
        of(schema)
    except RequestError as error:
        said = error.message
    else:
        said = "json_schema"
    assert said.startswith("json_schema")


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


def test_of_two_bounds_the_tighter_one_holds() -> None:
    both = {"type": "number", "minimum": 0, "exclusiveMinimum": 1, "maximum": 5, "exclusiveMaximum": 9}
    kept = json.loads(json_schema.enforced(json.dumps(both)))
    assert {key: kept[key] for key in both if key in kept} == {"type": "number", "exclusiveMinimum": 1, "maximum": 5}


def test_a_bound_that_is_no_number_is_refused() -> None:
    with pytest.raises(RequestError):
        of({"type": "number", "minimum": "a", "exclusiveMinimum": 0})
