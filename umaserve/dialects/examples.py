"""What the examples of several APIs have in common."""

from __future__ import annotations

ONCE, COLOURS = "Once upon a time", "Name three colours."
SKY, WEATHER = "Is the sky blue?", "What is the weather in Paris?"


def said(text: str) -> list[dict[str, str]]:
    """A conversation that begins with ``text``."""
    return [{"role": "user", "content": text}]


def object_of(**properties: object) -> dict[str, object]:
    """The schema of an object with all of ``properties``, and no others."""
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


YES_OR_NO = object_of(answer={"enum": ["yes", "no"]})
CITY = object_of(city={"type": "string", "maxLength": 20})
