"""Schemas of type annotations, on msgspec: check values and convert them to and from msgpack. Pure.

    None bool int float str bytes     unchanged; an int is accepted for a float, a bool is not a number
    list[T] set[T] frozenset[T] tuple[T, ...] tuple[A, B]   an array
    dict[K, V]                        a map; K is text, an integer or bytes
    dataclass, msgspec.Struct, TypedDict   a map by field; a field with a default may be missing, unknown fields are ignored
    NamedTuple                        an array
    Enum                              its value, all of them text or all integers
    Literal[…]                        one of these: text, integers, bools, None
    A | B                             distinguished by their shape on the wire; a union with two types of one shape is refused
    datetime date time timedelta UUID Decimal   text (ISO 8601 …)
    pydantic.BaseModel                a map by alias, with the extra `pydantic`
    Any                               any value of msgpack

A time with an offset would be an extension type of msgpack, so it is sent as text, its offset in whole minutes (RFC 3339).

Data of a peer is never called, imported or instantiated by name, as pickle does. A value that does not match raises `TypeMismatch` with
the place, the wanted type and the found type, but not the value.

A peer's bytes are judged by `core.machine.bounded_msgpack` before they become objects: extension types, depth, and the number of arrays
and maps (`containers_max`). Where the annotation itself ends the depth, msgspec decodes them then: it believes no claim of more elements
than there are bytes left. Bytes that are too few for any of these limits (`harmless_bytes`) are decoded at once. With `Any`, or a class
that contains itself, `bounded_msgpack.unpack` decodes them, claimed lengths are judged too, and msgspec converts the result.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect as shapes

from core.machine.bounded_msgpack import LARGE_BYTES, BadMsgpack, check, check_counts, check_elements, claimed, uncollected, unpack
from mdp.typed.fatal_unions import refuse_fatal_unions
from mdp.typed.hash_types import HashedTypes
from mdp.typed.schema_details import add_details

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Arrays and maps in a call or result: they take some hundred times the time and memory of their bytes. So many are free, and each further
# one needs so many bytes: 64 KiB of empty arrays are refused, 64 KiB of pairs of small numbers are not.
CONTAINERS_FREE: Final = 14_000
# The same where an annotation contains `Any` or itself, so that a peer chooses what is made.
CONTAINERS_FREE_ANY: Final = 1_000
BYTES_PER_CONTAINER: Final = 8
BYTES_PER_CONTAINER_ANY: Final = 12
# Objects with fields where many are possible: one costs ten times as much as an empty map. So many are free, and each further one needs two
# thirds of the bytes that its names and shortest values take, within these limits.
OBJECTS_FREE: Final = 500
BYTES_PER_OBJECT_MIN: Final = 3
BYTES_PER_OBJECT_MAX: Final = 16
# The same at least, where maps are taken apart first, because a dict has integers as keys or a set has elements to be checked.
BYTES_PER_CHECKED_OBJECT: Final = 10
# Different keys of all maps in a message where a peer chooses what is made: a new one costs three times as much as another value. So many
# are free, and more need so many bytes each, which a name of ten characters and a number have.
NAMES_FREE_ANY: Final = 1_000
BYTES_PER_NAME: Final = 20
# Elements of all arrays and maps where some of many take long to make: decimals, members of an enumeration in a set, texts with a pattern.
# So many are free, and each further one needs so many bytes: decimals of one digit take as long as prices, and are three times as many.
ELEMENTS_FREE: Final = 4_000
BYTES_PER_ELEMENT: Final = 3
# The same for an array of memory views, of which one takes as long as five decimals: fewer are free, and a part of a file is longer.
VIEWS_FREE: Final = 500
BYTES_PER_VIEW: Final = 10
# Bytes before the kind of an extension type: of 4 and 8 bytes, and the length of one of 12.
_BEFORE_KIND: Final = (0xD6, 0xD7, 12)
# So few bytes contain no set and no map that is slow. If these are of integers alone, more do: few of these have one hash, and they are
# compared quickly.
FEW_BYTES: Final = 128
FEW_BYTES_WHOLE: Final = 1024
# Types of which a value needs no check of its parts.
_SCALARS: Final[tuple[Any, ...]] = (bool, int, float, str, bytes)
NEEDED_AT_RUN_TIME: Final = "annotations are needed at run time, define or import before what they name"
_BARE: Final = (list, tuple, dict, set, frozenset)
_KEYS: Final = (
    shapes.AnyType,
    shapes.StrType,
    shapes.IntType,
    shapes.BytesType,
    shapes.EnumType,
    shapes.LiteralType,
    shapes.UUIDType,
    shapes.DateType,
)
_ARRAYS: Final = (shapes.ListType, shapes.VarTupleType, shapes.SetType, shapes.FrozenSetType)
_COLLECTIONS: Final = (*_ARRAYS, shapes.DictType)
_MAPS: Final = (shapes.DictType, shapes.StructType, shapes.DataclassType, shapes.TypedDictType)
_PLACE: Final = re.compile(r"(.*) - at `(key` in `)?\$?(.*)`", re.DOTALL)


class TypeMismatch(ValueError):
    """A value does not match its schema.

    Args:
        place: in the value, as `[0].price`; empty: the value itself.
    """

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem, place)
        self.problem = problem
        self.place = place

    def __str__(self) -> str:
        return (f"${self.place}: " if self.place else "") + self.problem


def containers_max(size_bytes: int, any_type: bool = False) -> int:
    """Return how many arrays and maps a message of so many bytes may contain."""
    if any_type:
        return CONTAINERS_FREE_ANY + size_bytes // BYTES_PER_CONTAINER_ANY
    return CONTAINERS_FREE + size_bytes // BYTES_PER_CONTAINER


# ------------------------------------------------------------------------------------------------------------------- packing


def pack_by_type(value: Any) -> bytes:
    """Return a value as msgpack, by its own type: arguments have no annotation at the caller. Raises TypeError."""
    try:
        octets = _encode(value)
        if 0xFF in octets and _may_have_times(octets):
            octets = _encode(msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview), enc_hook=_simpler))
    except (ValueError, OverflowError, RecursionError) as error:  # too deep, too large, or not UTF-8
        raise TypeError(f"this cannot be sent: {error}") from None
    return octets


def _may_have_times(octets: bytes) -> bool:
    """Return whether these bytes may contain a time as an extension type (kind 0xff); others have that by chance."""
    at = octets.find(0xFF)
    if at > 0 and octets.count(0xFF) > len(octets) >> 6:  # many: three searches for two bytes are faster than one for each
        return b"\xd7\xff" in octets or b"\xd6\xff" in octets or b"\xc7\x0c\xff" in octets
    while at > 0:
        if octets[at - 1] in _BEFORE_KIND:
            return True
        at = octets.find(0xFF, at + 1)
    return False


def _simpler(value: Any) -> Any:
    """Return a value that msgspec can pack in place of one that it cannot."""
    if _is_pydantic(type(value)):
        return value.model_dump(by_alias=True)
    for kind in _SCALARS:  # a subclass, as those of numpy
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"values of {type(value).__name__} cannot be sent; see mdp.typed.schemas for those that can")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_simpler).encode


# ----------------------------------------------------------------------------------------------------------------- unpacking


class Schema:
    """The schema of one annotation; raises TypeError for types that cannot be sent or distinguished."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        _refuse_bare(annotation)
        refuse_fatal_unions(annotation)
        try:
            self._decode = msgspec.msgpack.Decoder(annotation, dec_hook=_from_plain).decode
            shape = _Shape()
            info = shapes.type_info(annotation)
            shape.look_at(info)
            if isinstance(info, _ARRAYS) and not shape.is_deep:
                shape.is_flat_array = _is_flat(info.item_type)
                shape.is_row = _is_scalar(info.item_type)
            if shape.bytes_per_object and (shape.hashed or shape.hashed.numbers):
                shape.bytes_per_object = max(shape.bytes_per_object, BYTES_PER_CHECKED_OBJECT)
        except NameError as error:
            raise TypeError(f"{NEEDED_AT_RUN_TIME}: {error}") from None
        except (RecursionError, AttributeError) as error:
            raise TypeError(f"values of {annotation!r} cannot be sent: {error}") from None
        self._is_any = annotation in (Any, object)
        self._scalar = annotation if annotation in _SCALARS else None
        self._shape = shape
        self._has_times = shape.has_times
        self._judge = shape.hashed.check if shape.hashed else None
        self._few_bytes = shape.few_bytes()
        self._harmless_bytes = shape.harmless_bytes()
        are_views = shape.is_row and shape.has_views
        self._elements_free, self._bytes_per_element = (VIEWS_FREE, BYTES_PER_VIEW) if are_views else (ELEMENTS_FREE, BYTES_PER_ELEMENT)
        self._is_strict = shape.is_deep or shape.hashed.are_nested

    def pack(self, value: Any) -> bytes:
        """Return a value as msgpack, if that is a value of this type; raises TypeMismatch or TypeError."""
        octets = pack_by_type(value)
        if type(value) is not self._scalar:
            try:
                self._decode(octets)
            except (msgspec.DecodeError, RecursionError) as error:
                raise _mismatch(error) from None
        return octets

    def unpack(self, octets: bytes) -> Any:
        """Return the value of a peer's bytes; raises TypeMismatch if they are not one of this type."""
        try:  # hot path: once a call, and once a result
            if len(octets) <= self._harmless_bytes and not (self._has_times and 0xFF in octets):
                return self._decode(octets)
            return self._unpack_checked(octets)
        except (ValueError, RecursionError) as error:
            raise _mismatch(error) from None
        except TypeError as error:
            if "unhashable type" not in str(error):  # its beginning differs from Python 3.14 on
                raise  # a fault of a pydantic model
            raise TypeMismatch("expected elements of a set, got an array or a map as one") from None

    def _unpack_checked(self, octets: bytes) -> Any:
        shape, size = self._shape, len(octets)
        most = containers_max(size, self._is_strict)
        if shape.are_slow:
            self._check_elements(octets, self._elements_free + size // self._bytes_per_element)
        objects = OBJECTS_FREE + size // shape.bytes_per_object if shape.bytes_per_object else -1
        if shape.is_flat_array and claimed(octets) <= objects:
            objects = -1  # msgspec makes no more
        if not shape.is_deep and size <= self._few_bytes and not (self._has_times and _may_have_times(octets)):
            check_counts(octets, most if shape.has_arrays else -1, objects)
            return uncollected(self._decode, octets)
        if objects >= 0:
            check(octets, -1, objects)
        plain = self._plain(octets, most)
        if self._is_any:
            return plain
        return uncollected(lambda _: msgspec.convert(plain, self.annotation, builtin_types=(bytes,), dec_hook=_from_plain), octets)

    def _check_elements(self, octets: bytes, most: int) -> None:
        if not self._shape.is_row:
            check_elements(octets, most)
        elif claimed(octets) > most:
            raise BadMsgpack("too many elements")

    def _plain(self, octets: bytes, most: int) -> Any:
        """Return the value in types of msgpack, after a check of its keys and sets."""
        names = max(NAMES_FREE_ANY, len(octets) // BYTES_PER_NAME) if self._shape.is_deep else -1
        together = most + NAMES_FREE_ANY
        if len(octets) <= self._few_bytes:
            try:
                return unpack(octets, containers_max=most, names_max=names, together_max=together)
            except BadMsgpack as error:
                if "strict_map_key" not in str(error):
                    raise
        return unpack(
            octets,
            strict_map_key=False,
            containers_max=most,
            names_max=names,
            together_max=together,
            judge=self._judge,
            judge_above=self._shape.hashed.check_above,
        )


def json_schemas(annotations: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the JSON schema of each annotation, and those of the classes in them by name."""
    of_models: dict[str, Any] = {}

    def of_custom(kind: Any) -> dict[str, Any]:
        if kind is object:
            return {"description": "any value"}
        schema = kind.model_json_schema()
        of_models.update(schema.pop("$defs", {}))
        of_models.setdefault(kind.__name__, schema)  # there already if it contains itself
        return {"$ref": f"#/$defs/{kind.__name__}"}

    found, definitions = msgspec.json.schema_components(annotations, schema_hook=of_custom)
    add_details(annotations, found, definitions)
    return [*found], {**of_models, **definitions}


def _mismatch(error: Exception) -> TypeMismatch:
    """Return an error of decoding in our words: the place first, and no value of the peer."""
    if isinstance(error, RecursionError):
        return TypeMismatch("it is nested too deeply")
    if isinstance(error, BadMsgpack):
        return TypeMismatch(f"expected msgpack within the limits, got something else: {error}")
    if not isinstance(error, msgspec.ValidationError):
        return TypeMismatch("expected msgpack, got something else")
    found = _PLACE.fullmatch(str(error))
    problem, key, place = found.groups() if found else (str(error), None, "")
    problem = re.sub(r"^Invalid (enum )?value .*", "expected one of the values of the type, got another", problem, flags=re.DOTALL)
    problem = problem.replace("`", "") + (" as a key" if key else "")
    return TypeMismatch(problem[:1].lower() + problem[1:], place)


# ------------------------------------------------------------------------------------------------------------------ the types


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function; raises TypeError if one names what is not there."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, AttributeError) as error:
        raise TypeError(f"{getattr(function, '__qualname__', repr(function))}: {NEEDED_AT_RUN_TIME}: {error}") from None


class _Shape:
    """Properties of the types in an annotation."""

    def __init__(self) -> None:
        self.is_deep = False  # the annotation does not limit the depth of a value
        self.has_times = False
        self.has_arrays = False  # where many are possible; else the decoder ends at the first that is not expected
        self.bytes_per_object = 0  # of a map where many are possible, 0 if there is none
        self.is_flat_array = False  # an array, with as many maps at most as it has elements
        self.is_row = False  # an array without arrays and maps
        self.are_slow = False  # many values are possible that take long to make
        self.has_views = False  # of memory
        self.hashed = HashedTypes()
        self._collections = 0  # around the type that is looked at
        self._above: set[int] = set()  # ids of the types around the one that is looked at

    def look_at(self, info: Any) -> None:
        if id(info) in self._above:
            self.is_deep = True
            return
        match info:
            case shapes.AnyType():
                self.is_deep = True
            case shapes.DateTimeType():
                self.has_times = True
            case shapes.DecimalType() | shapes.StrType(pattern=str()) if self._collections:
                self.are_slow = True
            case shapes.MemoryViewType() if self._collections:
                self.are_slow = self.has_views = True
            case shapes.SetType(item_type=shapes.EnumType()) | shapes.FrozenSetType(item_type=shapes.EnumType()):
                self.are_slow = True
            case shapes.CustomType(cls=kind):
                self.is_deep = True
                if kind is not object and not _is_pydantic(kind):
                    raise TypeError(f"values of {kind!r} cannot be sent; see mdp.typed.schemas for those that can")
            case shapes.RawType() | shapes.ExtType():
                raise TypeError("extension types and raw msgpack cannot be sent; see mdp.typed.schemas for types that can")
            case shapes.DictType(key_type=key) if not isinstance(key, _KEYS):
                raise TypeError("keys of a dict are text, integers or bytes")
        self.hashed.look_at(info)
        self._above.add(id(info))
        is_collection = isinstance(info, _COLLECTIONS)
        self._collections += is_collection
        for inner in _parts(info):
            if is_collection:
                self._look_at_element(inner)
            self.look_at(inner)
        self._collections -= is_collection
        self._above.discard(id(info))

    def few_bytes(self) -> int:
        """Return the bytes up to which no set and no dict is slow."""
        if not (self.hashed or self.hashed.numbers):
            return sys.maxsize
        return FEW_BYTES_WHOLE if self.hashed.are_whole else FEW_BYTES

    def harmless_bytes(self) -> int:
        """Return the bytes up to which nothing is limited but times as extension types; -1 if there are none."""
        if self.is_deep:
            return -1
        return min(self.few_bytes(), OBJECTS_FREE if self.bytes_per_object else LARGE_BYTES)

    def _look_at_element(self, info: Any) -> None:
        size, maps, arrays = _smallest(info, frozenset())
        self.has_arrays |= arrays > 0
        if maps:
            each = min(max(size * 2 // 3 // maps, BYTES_PER_OBJECT_MIN), BYTES_PER_OBJECT_MAX)
            self.bytes_per_object = min(self.bytes_per_object or each, each)


def _smallest(info: Any, above: frozenset[int]) -> tuple[int, int, int]:
    """Return the bytes, maps and arrays of a short value with all its fields and empty collections."""
    if id(info) in above:
        return 1, 1, 1
    names: list[str] = []
    parts: list[Any] = []
    is_map = is_array = False
    match info:
        case shapes.UnionType(types=types):
            return max((_smallest(one, above) for one in types), key=lambda found: found[1:])
        case shapes.StructType(fields=fields, array_like=is_array):
            is_map = not is_array
            names, parts = [] if is_array else [one.encode_name for one in fields], [one.type for one in fields]
        case shapes.DataclassType(fields=fields) | shapes.TypedDictType(fields=fields):
            is_map = True
            names, parts = [one.encode_name for one in fields], [one.type for one in fields]
        case shapes.NamedTupleType(fields=fields):
            is_array, parts = True, [one.type for one in fields]
        case shapes.TupleType(item_types=types):
            is_array, parts = True, list(types)
        case shapes.CustomType(cls=kind) if kind is not object:
            is_map, names = True, [*getattr(kind, "model_fields", ())]
            parts = [None] * len(names)
        case shapes.DictType():
            is_map = True
        case shapes.ListType() | shapes.VarTupleType() | shapes.SetType() | shapes.FrozenSetType():
            is_array = True
    found = [_smallest(one, above | {id(info)}) for one in parts]
    size = 1 + sum(1 + len(name) for name in names) + sum(one[0] for one in found)
    return size, is_map + sum(one[1] for one in found), is_array + sum(one[2] for one in found)


def _parts(info: Any) -> list[Any]:
    """Return the types in a type, and the fields of a class."""
    parts: list[Any] = []
    for name in info.__struct_fields__:
        part = getattr(info, name)
        parts += [one for one in (part if isinstance(part, tuple) else (part,)) if isinstance(one, shapes.Type | shapes.Field)]
    return parts


def _has_map(info: Any) -> bool:
    return isinstance(info, _MAPS) or any(map(_has_map, _parts(info)))


def _is_scalar(info: Any) -> bool:
    return all(map(_is_scalar, info.types)) if isinstance(info, shapes.UnionType) else not _parts(info)


def _is_flat(info: Any) -> bool:
    """Return whether there is no map in a value, but itself."""
    if isinstance(info, shapes.UnionType):
        return all(map(_is_flat, info.types))
    return not any(map(_has_map, _parts(info)))


def _refuse_bare(annotation: Any) -> None:
    if annotation in _BARE:
        raise TypeError(f"{annotation.__name__} has no item type: write {annotation.__name__}[…]")
    if get_origin(annotation) is not Literal:
        for inner in get_args(annotation):
            if isinstance(inner, type) or get_origin(inner) is not None:
                _refuse_bare(inner)


# ------------------------------------------------------------------------------------------------------------------- pydantic


def _is_pydantic(kind: Any) -> bool:
    """Return whether this is a pydantic model; without the extra there are none, and it is never imported here."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _from_plain(kind: Any, plain: Any) -> Any:
    """Return a value of a type that msgspec does not know; raises ValueError with place and problem."""
    if kind is object or type(plain) is kind:
        return plain
    try:
        return kind.model_validate(plain)
    except ValueError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0] if hasattr(error, "errors") else {}
        place = ".".join(str(step) for step in first.get("loc", ()))
        raise ValueError(f"{place}: {first.get('msg', 'no valid value')}" if place else first.get("msg", "no valid value")) from None
