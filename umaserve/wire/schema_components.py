"""The components of an OpenAPI document: the schemas of what is declared in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umaserve.wire.declared import Declared, Kind, Schema, is_inline


class Components:
    """The schemas that a document refers to, by their names; each is added where it is first referred to."""

    def __init__(self) -> None:
        self.schemas: dict[str, Any] = {}
        self._targets: dict[str, object] = {}

    def rendered(self, value: Any) -> Any:
        """``value`` as plain JSON: what is declared in it is written there, or referred to as a component."""
        if isinstance(value, Mapping):
            target = value.get("$ref")
            if _is_declared(target):
                return self._written({key: item for key, item in value.items() if key != "$ref"}, target)
            return {key: self.rendered(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.rendered(item) for item in value]
        return self._written({}, value) if _is_declared(value) else value

    def _written(self, beside: Schema, target: Any) -> Any:
        name = target.name if isinstance(target, Kind) else target.__name__
        own = target.schema if isinstance(target, Kind) else target.schema()
        if is_inline(name):
            return self.rendered({**own, **beside})
        if name not in self._targets:
            self._targets[name] = target  # Before the schema, which may refer to itself.
            self.schemas[name] = self.rendered(own)
        if self._targets[name] is not target:
            raise TypeError(f"two schemas are called {name}")
        return {**beside, "$ref": f"#/components/schemas/{name}"}


def _is_declared(value: object) -> bool:
    return isinstance(value, Kind) or (isinstance(value, type) and issubclass(value, Declared))
