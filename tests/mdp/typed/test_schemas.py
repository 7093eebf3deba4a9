"""mdp.typed.schemas: what annotations say, there and back through msgpack."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgpack
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mdp.typed.schemas
from mdp.typed.schemas import Schema, TypeMismatch, containers_max, pack_by_type


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Point(NamedTuple):
    x: float
    y: float


class Extra(TypedDict):
    name: str
    note: NotRequired[str]


@dataclass
class Tree:
    name: str
    branches: list[Tree] = field(default_factory=list)
    parent: str | None = None


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Model(pydantic.BaseModel):
    at: datetime
    price: float = pydantic.Field(alias="cost")
    parts: list[bytes] = []


@dataclass(frozen=True)
class Order:
    id: UUID
    at: datetime
    price: Decimal
    tags: frozenset[str]
    colour: Colour
    where: Point
    extra: Extra


ORDER = Order(
    UUID(int=5),
    datetime(2030, 1, 2, 3, 4, 5, 6, UTC),
    Decimal("1.10"),
    frozenset({"a", "b"}),
    Colour.BLUE,
    Point(1.0, 2.0),
    {"name": "n"},
)
FITTING: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, -(2**63)),
    (int, 2**64 - 1),
    (float, 1.5),
    (str, "ü"),
    (bytes, b"\xff"),
    (list[int], [1, 2]),
    (set[int], {1, 2}),
    (tuple[int, ...], (1, 2, 3)),
    (tuple[int, str], (1, "a")),
    (tuple[()], ()),
    (dict[int, list[bytes]], {1: [b"a"]}),
    (int | None, None),
    (int | str, "a"),
    (Literal["a", 1], 1),
    (Colour, Colour.RED),
    (Size, Size.SMALL),
    (date, date(2030, 1, 2)),
    (time, time(1, 2, 3)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (datetime, datetime(2030, 1, 2, 3, 4, 5)),
    (datetime, datetime(2030, 1, 2, 3, 4, 5, 6, UTC)),
    (list[datetime], [datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))]),
    (Literal[True], True),
    (Cat | Dog | None, Dog("rex")),
    (Model, Model(at=datetime(2030, 1, 2, tzinfo=UTC), cost=1.5, parts=[b"\xff"])),
    (list[Model], [Model(at=datetime(2030, 1, 2), cost=1.5)]),
    (list[object], [1, "a"]),
    (Point, Point(1.0, 2.0)),
    (Extra, {"name": "n", "note": "x"}),
    (Tree, Tree("a", [Tree("b", parent="a")])),
    (Order, ORDER),
    (Any, {"a": [1, None]}),
]
UNFIT: list[tuple[Any, Any, str]] = [
    (int, True, "expected int, got bool"),
    (int, 1.0, "expected int, got float"),
    (float, True, "expected float, got bool"),
    (bool, 1, "expected bool, got int"),
    (str, b"a", "expected str, got bytes"),
    (list[int], [1, "a"], "$[1]: expected int, got str"),
    (list[int], {}, "expected array, got object"),
    (tuple[int, str], [1], "expected array of length 2, got 1"),
    (dict[str, int], {"a": "b"}, "$[...]: expected int, got str"),
    (dict[str, int], {1: 1}, "expected str, got int as a key"),
    (int | None, "a", "expected int | null, got str"),
    (Literal["a", "b"], "c", "expected one of the values of the type, got another"),
    (Literal["a", 1], True, "expected int | str, got bool"),
    (Colour, "green\n", "expected one of the values of the type, got another"),
    (Colour, [], "expected str, got array"),
    (UUID, "x", "invalid UUID"),
    (Decimal, "x", "invalid decimal string"),
    (datetime, 1, "expected datetime, got int"),
    (Tree, {}, "object missing required field name"),
    (Tree, {"name": "a", 1: 1}, "expected str as a key"),
    (Tree, {"name": "a", "branches": [{"name": 1}]}, "$.branches[0].name: expected str, got int"),
    (Extra, {}, "object missing required field name"),
    (Point, [1.0, "a"], "$[1]: expected float, got str"),
    (list[Tree] | None, [{"name": 1}], "$[0].name: expected str, got int"),
    (Cat | Dog, {"type": "cow"}, "$.type: expected one of the values of the type, got another"),
    (list[Model], [{"at": "2030-01-02", "cost": "dear"}], "$[0]: cost: Input should be a valid number, unable to parse string as a number"),
    (Model, [], "input should be a valid dictionary or instance of Model"),
]


def there_and_back(annotation: Any, value: Any) -> Any:
    schema = Schema(annotation)
    return schema.unpack(schema.pack(value))


@pytest.mark.parametrize(("annotation", "value"), FITTING)
def test_there_and_back(annotation: Any, value: Any) -> None:
    found = there_and_back(annotation, value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(("annotation", "value", "says"), UNFIT)
def test_a_mismatch_is_named_with_its_place(annotation: Any, value: Any, says: str) -> None:
    with pytest.raises(TypeMismatch) as caught:
        Schema(annotation).unpack(msgpack.packb(value))
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**64),
        (int, "1"),
        (float, True),
        (Tree, Tree(name=1)),  # type: ignore[arg-type]
        (Tree, Tree("a", [Tree(None)])),  # type: ignore[arg-type]
        (datetime, date(2030, 1, 2)),
        (set[int], {"a"}),
        (None, 0),
        (int, object()),
    ],
)
def test_results_of_a_wrong_type_are_refused(annotation: Any, value: Any) -> None:
    with pytest.raises((TypeMismatch, TypeError)):
        Schema(annotation).pack(value)


@pytest.mark.parametrize(
    ("annotation", "value", "read"),
    [
        (list[int], (1,), [1]),
        (Tree, {"name": "a"}, Tree("a")),
        (Colour, "red", Colour.RED),
        (Point, [1.0, 2.0], Point(1.0, 2.0)),
        (float, 2, 2.0),
        (Tree, {"name": "a", "unknown": [1]}, Tree("a")),
    ],
)
def test_a_result_is_of_its_type_when_a_reader_finds_it_so(annotation: Any, value: Any, read: Any) -> None:
    assert there_and_back(annotation, value) == read


def test_an_int_is_accepted_for_a_float() -> None:
    assert there_and_back(float, 2) == 2.0
    assert type(there_and_back(float, 2)) is float


@pytest.mark.parametrize(
    "annotation",
    [
        list,
        dict,
        list[tuple],  # type: ignore[type-arg]
        dict[float, int],
        dict[tuple[int, ...], int],
        object(),
        Schema,
        list[Schema],
        type[int],
        "int",
        Literal[1.5],
        msgspec.Raw,
        msgspec.msgpack.Ext,
        "Unknown",
        list["Unknown"],  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_types_that_cannot_be_sent(annotation: Any) -> None:
    with pytest.raises(TypeError):
        Schema(annotation)


@pytest.mark.parametrize(
    "annotation", [str | datetime, str | bytes, list[int] | set[int], Tree | Extra, Tree | Order, Point | list[int], Model | int]
)
def test_unions_of_one_shape_on_the_wire_are_refused(annotation: Any) -> None:
    with pytest.raises(TypeError, match=r"may not contain more than one|custom"):
        Schema(annotation)


class Number(float): ...


def test_values_go_by_their_own_type() -> None:
    packed = pack_by_type([ORDER, {1}, Tree("a"), Number(1.5), Model(at=datetime(2030, 1, 2, tzinfo=UTC), cost=2)])
    order, numbers, tree, number, model = msgpack.unpackb(packed)
    assert (order["price"], order["where"], numbers, tree["name"], number) == ("1.10", [1.0, 2.0], [1], "a", 1.5)
    assert model == {"at": "2030-01-02T00:00:00Z", "cost": 2.0, "parts": []}
    for unfit in (object(), object, [len]):
        with pytest.raises(TypeError):
            pack_by_type(unfit)


def test_times_are_text_whatever_else_has_their_bytes() -> None:
    """No extension types (X2): a time with an offset would be one."""
    time_with_offset = datetime(2030, 1, 2, tzinfo=UTC)
    for beside in (b"", b"\xd7\xff", b"\xff" * 400, b"\xff" * 400 + b"\xd6\xff", -1, [1.7976931348623157e308] * 30):
        assert msgpack.unpackb(pack_by_type([beside, time_with_offset])) == [beside, "2030-01-02T00:00:00Z"]
        assert msgpack.unpackb(pack_by_type([beside])) == [beside]
    for moment in (msgpack.Timestamp(1), msgpack.Timestamp(1, 5), msgpack.Timestamp(2**40, 5)):
        for annotation in (datetime, list[datetime], Any):
            with pytest.raises(TypeMismatch):
                Schema(annotation).unpack(msgpack.packb([moment] if annotation == list[datetime] else moment))


# What the own codec before msgspec sent: value, annotation, bytes.
RECORDED: list[tuple[Any, Any, str]] = [
    (None, None, "c0"),
    (bool, True, "c3"),
    (int, -(2**63), "d38000000000000000"),
    (int, 2**64 - 1, "cfffffffffffffffff"),
    (float, 1.5, "cb3ff8000000000000"),
    (str, "ü", "a2c3bc"),
    (bytes, b"\xff", "c401ff"),
    (list[int], [1, 2], "920102"),
    (set[int], {1, 2}, "920102"),
    (tuple[int, ...], (1, 2, 3), "93010203"),
    (tuple[int, str], (1, "a"), "9201a161"),
    (tuple[()], (), "90"),
    (dict[int, list[bytes]], {1: [b"a"]}, "810191c40161"),
    (dict[bytes, int], {b"a": 1}, "81c4016101"),
    (int | None, None, "c0"),
    (int | str, "a", "a161"),
    (Literal["a", 1], 1, "01"),
    (Colour, Colour.RED, "a3726564"),
    (Size, Size.SMALL, "01"),
    (date, date(2030, 1, 2), "aa323033302d30312d3032"),
    (datetime, datetime(2030, 1, 2, 3, 4, 5), "b3323033302d30312d30325430333a30343a3035"),
    (
        datetime,
        datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2))),
        "b9323033302d30312d30325430333a30343a30352b30323a3030",
    ),
    (UUID, UUID(int=5), "d92430303030303030302d303030302d303030302d303030302d303030303030303030303035"),
    (Decimal, Decimal("1.10"), "a4312e3130"),
    (Point, Point(1.0, 2.0), "92cb3ff0000000000000cb4000000000000000"),
    (Extra, {"name": "n", "note": "x"}, "82a46e616d65a16ea46e6f7465a178"),
    (
        Tree,
        Tree("a", [Tree("b", parent="a")]),
        "83a46e616d65a161a86272616e636865739183a46e616d65a162a86272616e6368657390a6706172656e74a161a6706172656e74c0",
    ),
    (Any, {"a": [1, None]}, "81a1619201c0"),
]
ORDER_BEFORE = (
    "87a26964d92430303030303030302d303030302d303030302d303030302d303030303030303030303035a26174d920323033302d30312d30325430333a30343a30352e"
    "3030303030362b30303a3030a57072696365a4312e3130a47461677392a162a161a6636f6c6f7572a4626c7565a5776865726592cb3ff0000000000000cb4000000000"
    "000000a5657874726181a46e616d65a16e"
)


@pytest.mark.parametrize(("annotation", "value", "octets"), RECORDED)
def test_the_bytes_are_those_of_the_codec_before(annotation: Any, value: Any, octets: str) -> None:
    schema = Schema(annotation)
    assert schema.pack(value).hex() == octets
    assert pack_by_type(value).hex() == octets
    assert schema.unpack(bytes.fromhex(octets)) == value


def test_times_of_utc_are_written_in_the_short_form_and_both_are_read() -> None:
    assert Schema(Order).unpack(bytes.fromhex(ORDER_BEFORE)) == ORDER
    packed = msgpack.unpackb(Schema(Order).pack(ORDER))
    before = msgpack.unpackb(bytes.fromhex(ORDER_BEFORE))
    assert (packed.pop("at"), before.pop("at")) == ("2030-01-02T03:04:05.000006Z", "2030-01-02T03:04:05.000006+00:00")
    assert sorted(packed.pop("tags")) == sorted(before.pop("tags"))
    assert packed == before
    assert Schema(float).unpack(bytes.fromhex("cb4000000000000000")) == 2.0, "a float before, though an integer was returned"


# ------------------------------------------------------------------------------------------------------------ what a peer may cost


def made(annotation: Any, octets: bytes) -> int:
    """Return how many arrays and maps a message made, 0 if it was refused for their number."""
    try:
        value = Schema(annotation).unpack(octets)
    except TypeMismatch as error:
        return 0 if "too many arrays and maps" in str(error) else -1
    return 1 + sum(1 + len(inner) for inner in value)


def nested_pairs(count: int, size: int) -> bytes:
    """Return an array of so many arrays of one empty array each, and a filling up to some size."""
    head = b"\xdd" + (count + 1).to_bytes(4, "big") + b"\x91\x90" * count
    filling = size - len(head) - 4
    return head + b"\x91\xc5" + filling.to_bytes(2, "big") + b"\x90" * filling


@pytest.mark.parametrize(
    ("annotation", "allowed"), [(list[list[Any]], 1_000 + 5_461), (Any, 1_000 + 5_461), (list[list[list[int] | bytes]], 14_000 + 8_192)]
)
def test_x2_a_hostile_64_kib_makes_as_many_containers_as_its_bytes_pay_for(annotation: Any, allowed: int) -> None:
    size = 64 * 1024
    most = containers_max(size, any_type=allowed < 10_000)
    assert most == allowed
    assert 0 < made(annotation, nested_pairs(most // 2 - 10, size)) <= most
    for count in (most // 2 + 10, 31_000):
        assert made(annotation, nested_pairs(count, size)) == 0


def flat(piece: bytes, count: int, size: int) -> bytes:
    """Return an array of so many pieces, filled up with numbers."""
    numbers = size - 5 - len(piece) * count
    return b"\xdd" + (count + numbers).to_bytes(4, "big") + piece * count + b"\x01" * numbers


@pytest.mark.parametrize("piece", [b"\x90", b"\x80", b"\x91\x01", b"\x81\xa1k\x01"], ids=["[]", "{}", "[1]", "{k: 1}"])
def test_x2_where_a_peer_chooses_the_types_as_many_containers_are_read_as_documented(piece: bytes) -> None:
    size = 64 * 1024
    most = 1_000 + size // 12
    for annotation in (Any, list[Any]):
        schema = Schema(annotation)
        assert len(schema.unpack(flat(piece, most - 1, size))) == size - 5 - (len(piece) - 1) * (most - 1)
        with pytest.raises(TypeMismatch, match="too many arrays and maps"):
            schema.unpack(flat(piece, most, size))


@pytest.mark.parametrize("annotation", [Any, list[list[int] | int]])
def test_x2_no_garbage_is_collected_while_a_message_is_decoded(annotation: Any) -> None:
    runs: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        runs.append(phase)

    schema = Schema(annotation)
    octets = flat(b"\x90", 6_400, 64 * 1024)
    before = gc.get_threshold()
    gc.set_threshold(700)
    gc.callbacks.append(note)
    try:
        runs.clear()
        value = schema.unpack(octets)
        collections = len(runs)
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
    assert len(value) > 6_400
    assert collections <= 4, "before and after it some arrays are made, of 6,400 there would be 9"
    assert gc.isenabled()
    with pytest.raises(TypeMismatch):
        schema.unpack(octets[:-1])
    assert gc.isenabled()
    gc.disable()
    try:
        schema.unpack(octets)
        assert not gc.isenabled(), "a program that has disabled it keeps it so"
    finally:
        gc.enable()


def test_x2_an_honest_message_of_64_kib_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mdp.typed.schemas, "unpack")  # the slower way is not taken
    honest = [Point(number * 1.37, number) for number in range(3_400)]
    octets = pack_by_type(honest)
    assert len(octets) > 40_000
    assert Schema(list[Point]).unpack(octets) == honest
    orders = [ORDER] * 300
    assert Schema(list[Order]).unpack(pack_by_type(orders)) == orders


@pytest.mark.parametrize("annotation", [Any, list[Any], Tree, dict[str, Any], list[list[int]], Order, list[datetime], Model])
@pytest.mark.parametrize(
    "octets",
    [
        b"\x91" * 5000 + b"\xc0",
        b"\x91" * 33 + b"\xc0",
        b"\x81\xa1k" * 40 + b"\xc0",
        b"\xdd\xff\xff\xff\xff",
        b"\xdc\xff\xff" * 20_000,
        msgpack.packb(msgpack.ExtType(5, b"abc")),
        b"\xa2\xff\xfe",
        b"\xc1",
        b"\x01\x02",
        b"",
    ],
    ids=lambda octets: octets[:8].hex(),
)
def test_x2_hostile_bytes_are_a_mismatch(annotation: Any, octets: bytes) -> None:
    with pytest.raises(TypeMismatch):
        Schema(annotation).unpack(octets)


def test_without_pydantic_nothing_is_one_of_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(TypeError):
        Schema(Model)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
    max_leaves=10,
)


@given(value=JUNK, annotation=st.sampled_from([annotation for annotation, _ in FITTING]))
def test_any_value_matches_or_is_a_mismatch(value: Any, annotation: Any) -> None:
    schema = Schema(annotation)
    try:
        found = schema.unpack(msgpack.packb(value))
    except TypeMismatch:
        return
    assert schema.unpack(schema.pack(found)) == found or found != found or "nan" in repr(found)
