"""Details that msgspec leaves out of JSON schemas: formats of times, and names of enum members. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import inspect as shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The name under which generators of clients look for it.
ENUM_NAMES: Final = "x-enum-varnames"


def add_details(annotations: Sequence[Any], schemas: Sequence[dict[str, Any]], definitions: dict[str, Any]) -> None:
    """Complete schemas in place."""
    details = _Details(definitions)
    for info, schema in zip(shapes.multi_type_info(annotations), schemas, strict=True):
        details.add(info, schema)


class _Details:
    """Walk over types and their schemas at the same time."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._done: set[str] = set()

    def add(self, info: Any, schema: Any) -> None:
        info = _plain(info)
        if not isinstance(schema, dict):
            return
        if "$ref" in schema:
            key = schema["$ref"].rpartition("/")[2]
            if key in self._done or key not in self._definitions:
                return
            self._done.add(key)
            schema = self._definitions[key]
        match info:
            case shapes.DateTimeType():
                schema.setdefault("format", "date-time")
            case shapes.TimeType():
                schema.setdefault("format", "time")
            case shapes.EnumType(cls=kind):
                schema[ENUM_NAMES] = [kind(value).name for value in schema["enum"]]
            case shapes.CollectionType(item_type=inner):
                self.add(inner, schema.get("items"))
            case shapes.DictType(value_type=inner):
                self.add(inner, schema.get("additionalProperties"))
            case shapes.TupleType(item_types=parts):
                for part, one in zip(parts, schema.get("prefixItems", ()), strict=False):
                    self.add(part, one)
            case shapes.UnionType(types=parts):
                for part in parts:
                    for one in _members(schema):
                        if self._fits(_plain(part), one):
                            self.add(part, one)
            case (
                shapes.StructType(fields=fields)
                | shapes.DataclassType(fields=fields)
                | shapes.TypedDictType(fields=fields)
                | shapes.NamedTupleType(fields=fields)
            ):
                in_order = schema.get("prefixItems", ())[-len(fields) or None :]  # the first may be a tag
                by_name = schema.get("properties") or dict(zip((field.encode_name for field in fields), in_order, strict=False))
                for field in fields:
                    self.add(field.type, by_name.get(field.encode_name))

    def _fits(self, info: Any, schema: dict[str, Any]) -> bool:
        """Return whether a member of a union is that of a type; only of classes may there be several."""
        if "$ref" in schema:
            title = str(self._definitions.get(schema["$ref"].rpartition("/")[2], {}).get("title"))
            return hasattr(info, "cls") and title.partition("[")[0] == info.cls.__name__
        match info:
            case shapes.DateTimeType() | shapes.TimeType():
                return schema.get("type") == "string" and not schema.keys() & {"format", "contentEncoding"}
            case shapes.CollectionType() | shapes.TupleType():
                return schema.get("type") == "array"
            case shapes.DictType():
                return schema.get("type") == "object"
        return False


def _plain(info: Any) -> Any:
    while isinstance(info, shapes.Metadata):
        info = info.type
    return info


def _members(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in schema.get("anyOf", ()):
        if "anyOf" in one:
            yield from _members(one)
        else:
            yield one
