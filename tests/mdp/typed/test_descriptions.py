"""mdp.typed.descriptions: what a typed service says about itself, from its worker through the broker to a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator  # noqa: TC003 - annotations of services are read at run time
from dataclasses import dataclass
from typing import Any

import msgpack
import msgspec
import pydantic
import pytest

import mdp
import mdp.testing
from mdp.typed.descriptions import DESCRIPTION_BYTES_MAX, Description, announced, description_of
from mdp.wire.options import DESCRIPTION, OPTIONS_BYTES_MAX


@dataclass
class Line:
    item: str
    price: float
    count: int = 1


class Part(pydantic.BaseModel):
    name: str


class Model(pydantic.BaseModel):
    parts: list[Part]


@mdp.service("total", version="1.2")
async def total(lines: list[Line], discount: float = 0.0, *, notes: set[str] = set(), request: mdp.Request) -> float:  # noqa: B006
    """Sum the lines.

    After the discount.
    """
    return sum(line.price * line.count for line in lines) * (1 - discount)


@mdp.service("count")
async def count(upto: int) -> AsyncIterator[Line]:
    for number in range(upto):
        yield Line("n", number)


@mdp.service("models", inline=True)
def models(model: Model, anything: object = None) -> Any: ...


@mdp.service("raw")
async def raw(request: mdp.Request) -> bytes:
    return b""


def test_signature_docstring_and_schemas_of_a_function() -> None:
    described = description_of(total, "total", "1.2")
    assert described.signature == "(lines: list[Line], discount: float = 0.0, *, notes: set[str] = set()) -> float"
    assert described.doc == "Sum the lines.\n\nAfter the discount."
    assert (described.version, described.stream, described.by_name) == ("1.2", False, ["notes"])
    assert described.arguments == {
        "type": "object",
        "properties": {
            "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
            "discount": {"type": "number", "default": 0.0},
            "notes": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        },
        "required": ["lines"],
        "additionalProperties": False,
    }
    assert described.result == {"type": "number"}
    assert described.definitions["Line"]["required"] == ["item", "price"]
    assert msgspec.json.decode(msgspec.json.encode(described), type=Description) == described


def test_a_generator_describes_its_values_and_pydantic_its_models() -> None:
    stream = description_of(count, "count")
    assert (stream.stream, stream.result, list(stream.definitions)) == (True, {"$ref": "#/$defs/Line"}, ["Line"])
    with_models = description_of(models, "models")
    assert set(with_models.definitions) == {"Model", "Part"}
    assert with_models.arguments["properties"]["anything"] == {"description": "any value", "default": None}
    assert with_models.definitions["Model"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Part"}


def test_what_is_too_long_leaves_out_schemas_then_the_docstring() -> None:
    small = Description(service="s", signature="()", doc="d", arguments={"type": "object"})

    def sent(description: Description, metadata: dict[str, Any] | None = None) -> Any:
        whole = announced(description, metadata)
        assert whole is not None
        assert len(msgpack.packb(whole)) <= OPTIONS_BYTES_MAX
        return msgspec.json.decode(whole[DESCRIPTION])

    assert sent(small, {"zone": "a"})["arguments"] == {"type": "object"}
    large = msgspec.structs.replace(small, arguments={"type": "x" * DESCRIPTION_BYTES_MAX})
    assert sent(large) == {"service": "s", "signature": "()", "doc": "d"}
    assert sent(msgspec.structs.replace(large, doc="d" * DESCRIPTION_BYTES_MAX)) == {"service": "s", "signature": "()"}
    huge = msgspec.structs.replace(large, signature="x" * DESCRIPTION_BYTES_MAX)
    assert announced(huge, {"zone": "a"}) == {"zone": "a"}
    assert announced(huge, None) is None
    full = {"zone": "a" * (OPTIONS_BYTES_MAX - 300)}
    assert announced(small, full) == full
    unfit = {"zone": object()}
    assert announced(small, unfit) == unfit


async def test_a_client_is_given_the_description_of_the_newest_worker() -> None:
    async with mdp.testing.broker(total, raw) as local:
        described = await mdp.describe(local.client, "total")
        assert described == description_of(total, "total", "1.2")
        assert await mdp.describe(local.client, b"raw") == Description(service="raw")
        with pytest.raises(mdp.NoService):
            await mdp.describe(local.client, "missing")

        @mdp.service("total", version="2.0", metadata={"zone": "b"})
        async def newer(lines: list[Line]) -> float: ...  # type: ignore[empty-body]

        async with mdp.Worker(local.endpoint, newer, context=local.context):
            while (await mdp.describe(local.client, "total")).version != "2.0":
                await asyncio.sleep(0)
            code, rows = await local.client.request("mmi.workers", b"total")
            assert code == b"200"
            assert sorted(str(row["metadata"]) for row in json.loads(rows)) == ["None", "{'zone': 'b'}"], (
                "the description is not shown twice"
            )
        while (await mdp.describe(local.client, "total")).version != "1.2":
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "answer", [[b"501"], [b"200"], [b"200", b"{"], [b"200", b"[1]"], [b"200", b"[" * 5000], [b"200", b"{}", b""], [b"\xff"]]
)
async def test_an_answer_that_is_none_is_an_error(answer: list[bytes]) -> None:
    class Client:
        async def request(self, service: str, *frames: bytes) -> list[bytes]:
            return answer

    with pytest.raises(mdp.RequestError):
        await mdp.describe(Client(), "total")  # type: ignore[arg-type]
