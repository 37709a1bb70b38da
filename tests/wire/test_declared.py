"""Declared objects: what is read of a client's JSON, and the JSON Schema that says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import RequestError
from umaserve.wire.declared import (
    Declared,
    Kind,
    array,
    boolean,
    by_type,
    choice,
    const,
    mapping,
    named,
    nullable,
    number,
    omittable,
    one_of,
    optional,
    required,
    string,
    strings,
    switch,
    text_or,
    value,
    whole,
)
from umaserve.wire.fields import Fields
from umaserve.wire.schema_components import Components

Colour = named("Colour", choice("red", "blue"), "A colour.")


class _Inner(Declared):
    depth = optional(whole(0, 3))


class _Brush(Declared):
    type = required(const("brush"))


class _Roller(Declared):
    type = required(choice("roller", "pad"))
    width = required(whole(1))


class Base(Declared):
    """Fields that several share."""

    model = optional(string(1, 8), "One of the list.")


class Paint(Base, closed=True):
    """A pot
    of paint."""

    colour = required(Colour)
    share = optional(number(0, 1, above_low=True), "Of the pot.", default=0.5)
    names = optional(strings(2, 4))
    dry = switch(False)
    wet = optional(boolean())
    inner = optional(_Inner)
    name_ = nullable(string())
    odd = omittable(const(1), key="odd[]")
    pots = optional(array(Base, 1, 2))
    lids = optional(array(Base, 1, 2, of="lids"))
    tool = omittable(by_type(_Brush, _Roller))
    label = omittable(text_or(_Inner, high=2, of="labels"))


POTS = {
    "type": ["array", "null"],
    "items": {"$ref": "#/components/schemas/Base"},
    "minItems": 1,
    "maxItems": 2,
}


def error(read: Any) -> str:
    with pytest.raises(RequestError) as caught:
        read()
    return f"{caught.value.field}: {caught.value.problem}"


def paint(**values: Any) -> Paint:
    return Paint(values, "paint.")


def test_a_field_is_read_and_checked_where_it_is_asked_for() -> None:
    pot = paint(colour="red", share=0.25, names="a", wet=True, inner={"depth": 2}, model="m")
    assert (pot.colour, pot.share, pot.names, pot.wet, pot.model) == ("red", 0.25, ("a",), True, "m")
    assert pot.inner is not None
    assert pot.inner.depth == 2
    assert paint(colour=3).share is None, "another field's fault is its own"


def test_an_absent_field_is_none_or_what_the_switch_says() -> None:
    for empty in (paint(), paint(share=None, dry=None, inner=None, names=None)):
        assert (empty.share, empty.inner, empty.names, empty.wet, empty.dry) == (None, None, None, None, False)


@pytest.mark.parametrize(
    ("values", "read", "expected"),
    [
        ({}, "colour", 'paint.colour: expected "red" or "blue", got null'),
        ({"colour": "green"}, "colour", 'paint.colour: expected "red" or "blue", got "green"'),
        ({"share": 0}, "share", "paint.share: expected a number above 0 up to 1, got 0"),
        ({"share": "1"}, "share", "paint.share: expected a number above 0 up to 1, got a string"),
        ({"dry": 1}, "dry", "paint.dry: expected true or false, got a whole number"),
        (
            {"names": ["a", ""]},
            "names",
            "paint.names[1]: expected a non-empty string of at most 4 bytes, got an empty one",
        ),
        ({"model": "ninebytes"}, "model", "paint.model: expected a non-empty string of at most 8 bytes, got 9 bytes"),
        ({"lids": []}, "lids", "paint.lids: expected an array of 1 to 2 lids, got 0"),
        ({"lids": [{}, 1]}, "lids", "paint.lids[1]: expected an object, got a whole number"),
        ({"inner": []}, "inner", "paint.inner: expected an object, got an array"),
        ({"tool": []}, "tool", "paint.tool: expected an object, got an array"),
        ({"tool": {}}, "tool", 'paint.tool.type: expected "brush" or "roller" or "pad", got null'),
        ({"label": 1}, "label", "paint.label: expected a string or an array of labels, got a whole number"),
        ({"label": [{}] * 3}, "label", "paint.label: expected an array of 0 to 2 labels, got 3"),
        ({"label": [1]}, "label", "paint.label[0]: expected an object, got a whole number"),
    ],
)
def test_an_error_names_the_field_and_what_was_expected(values: dict[str, Any], read: str, expected: str) -> None:
    assert error(lambda: getattr(paint(**values), read)) == expected


def test_the_items_of_an_array_are_read() -> None:
    (lid,) = paint(lids=[{"model": ""}]).lids or ()
    assert error(lambda: lid.model).startswith("paint.lids[0].model: expected a non-empty string")
    assert paint(pots=[{"model": ""}]).pots == [{"model": ""}], "described only"


@pytest.mark.parametrize(("name", "of"), [("brush", _Brush), ("roller", _Roller), ("pad", _Roller)])
def test_an_object_is_of_the_class_that_its_type_tells(name: str, of: type[Declared]) -> None:
    tool = paint(tool={"type": name, "width": 0}).tool
    assert type(tool) is of
    if isinstance(tool, _Roller):
        assert error(lambda: tool.width) == "paint.tool.width: expected a whole number from 1, got 0"


def test_the_type_of_one_class_is_checked_too() -> None:
    brush = by_type(_Brush)
    assert brush.schema == {"$ref": _Brush}
    assert error(lambda: brush.read({"type": "pad"}, "x")) == 'x.type: expected "brush", got "pad"'


def test_a_text_may_stand_for_an_array() -> None:
    assert paint(label="").label == ""
    (label,) = paint(label=[{"depth": 3}]).label or ()
    assert isinstance(label, _Inner)
    assert label.depth == 3


def test_an_inner_field_is_named_by_its_path() -> None:
    inner = paint(inner={"depth": 4}).inner
    assert error(lambda: inner.depth) == "paint.inner.depth: expected a whole number from 0 to 3, got 4"


def test_a_view_reads_the_same_object_by_other_declarations() -> None:
    assert Paint.view(Fields({"share": 1}, "x.")).share == 1
    assert error(lambda: Paint.view(Fields({"share": 2}, "x.")).share).startswith("x.share: ")
    pot = paint(model="ninebytes")
    assert Base.view(pot) is pot, "which may declare a field in another way"


def test_all_names_are_those_in_json() -> None:
    assert Paint.field_names() == {
        *("model", "colour", "share", "names", "dry", "wet", "inner", "name", "odd[]", "pots", "lids", "tool", "label"),
    }


def test_the_schema_says_what_is_read() -> None:
    components = Components()
    assert components.rendered({"schema": Paint}) == {"schema": {"$ref": "#/components/schemas/Paint"}}
    assert set(components.schemas) == {"Paint", "Base", "Colour"}
    assert components.schemas["Colour"] == {"enum": ["red", "blue"], "description": "A colour."}
    schema = components.schemas["Paint"]
    assert schema["allOf"] == [{"$ref": "#/components/schemas/Base"}]
    assert schema["description"] == "A pot of paint."
    assert schema["required"] == ["colour", "name"]
    assert schema["additionalProperties"] is False
    assert schema["properties"] == {
        "colour": {"$ref": "#/components/schemas/Colour"},
        "share": {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "Of the pot.",
            "default": 0.5,
        },
        "names": {
            "oneOf": [
                {"type": "string", "minLength": 1, "maxLength": 4},
                {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 4}, "maxItems": 2},
                {"type": "null"},
            ]
        },
        "dry": {"type": ["boolean", "null"], "default": False},
        "wet": {"type": ["boolean", "null"]},
        "inner": {
            "type": ["object", "null"],
            "properties": {"depth": {"type": ["integer", "null"], "minimum": 0, "maximum": 3}},
        },
        "name": {"type": ["string", "null"]},
        "odd[]": {"const": 1},
        "pots": POTS,
        "lids": POTS,
        "tool": {
            "oneOf": [
                {"type": "object", "required": ["type"], "properties": {"type": {"const": "brush"}}},
                {
                    "type": "object",
                    "required": ["type", "width"],
                    "properties": {
                        "type": {"enum": ["roller", "pad"]},
                        "width": {"type": "integer", "minimum": 1},
                    },
                },
            ]
        },
        "label": {
            "oneOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"depth": {"type": ["integer", "null"], "minimum": 0, "maximum": 3}},
                    },
                    "maxItems": 2,
                },
            ]
        },
    }


def test_inherited_fields_may_have_other_defaults() -> None:
    class Gloss(Paint, defaults=SimpleNamespace(share=0.75, model="of no default")):
        dry = switch(True)
        coats = optional(whole(1), default=2)

    components = Components()
    properties = components.rendered(Gloss.schema())["properties"]
    assert "Paint" not in components.schemas
    assert properties.keys() == Gloss.field_names() == Paint.field_names() | {"coats"}
    defaults = {name: described["default"] for name, described in properties.items() if "default" in described}
    assert defaults == {"share": 0.75, "dry": True, "coats": 2}
    assert (Gloss({}).dry, Gloss({"share": 0.25}).share) == (True, 0.25)
    assert Paint.share.default == 0.5, "of the class itself, as before"


def test_null_is_added_to_whatever_a_kind_is() -> None:
    class Any_(Declared):
        colour = optional(Colour)
        number_ = optional(choice(1, 2))
        either = optional(one_of(string(), Base))
        many = optional(mapping(whole(0), maxProperties=2))
        free = optional(value(type=["object", "string"]))

    properties = Components().rendered(Any_.schema())["properties"]
    assert properties == {
        "colour": {"oneOf": [{"$ref": "#/components/schemas/Colour"}, {"type": "null"}]},
        "number": {"enum": [1, 2, None]},
        "either": {"oneOf": [{"type": "string"}, {"$ref": "#/components/schemas/Base"}, {"type": "null"}]},
        "many": {
            "type": ["object", "null"],
            "additionalProperties": {"type": "integer", "minimum": 0},
            "maxProperties": 2,
        },
        "free": {"type": ["object", "string", "null"]},
    }


def test_what_is_inherited_from_a_class_without_a_name_is_written_where_it_is_used() -> None:
    class _Between(Base):
        depth = required(whole(0, 3))

    class Deep(_Between):
        name_ = required(string())

    schema = Components().rendered(Deep.schema())
    assert schema["allOf"] == [{"$ref": "#/components/schemas/Base"}]
    assert list(schema["properties"]) == schema["required"] == ["depth", "name"]


def test_one_name_is_of_one_schema() -> None:
    components = Components()
    components.rendered(Colour)
    with pytest.raises(TypeError, match="two schemas are called Colour"):
        components.rendered(named("Colour", choice("green")))


def test_a_schema_may_refer_to_itself() -> None:
    tree: Kind[Any] = named("Tree", value(type="object", properties={}))
    tree.schema["properties"]["branches"] = {"type": "array", "items": tree}
    components = Components()
    components.rendered(tree)
    assert components.schemas["Tree"]["properties"]["branches"]["items"] == {"$ref": "#/components/schemas/Tree"}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-2, 2)
    | st.sampled_from(["red", "blue", "", "ninebytes"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["depth", "x"]), inner, max_size=2),
)


@given(st.sampled_from(["colour", "share", "names", "dry", "wet", "inner", "model"]), JSON)
def test_what_is_read_without_an_error_is_as_the_schema_says(name: str, given_value: object) -> None:
    components = Components()
    schema = components.rendered(Base if name == "model" else Paint)
    assert schema
    part = components.schemas["Base" if name == "model" else "Paint"]["properties"][name]
    validator = jsonschema.Draft202012Validator({**part, "components": {"schemas": components.schemas}})
    try:
        read = getattr(paint(**{name: given_value}), name)
        if isinstance(read, _Inner):
            _ = read.depth
        fits = True
    except RequestError:
        fits = False
    assert validator.is_valid(given_value) or not fits
