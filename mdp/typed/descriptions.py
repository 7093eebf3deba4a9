"""Descriptions of typed services: announced by their workers, kept by the broker, asked for by clients.

    description = await mdp.describe(client, "total")
    print(description.signature)      # (lines: list[Line], discount: float = 0.0) -> float

A worker of MDP/0.3 sends the description as JSON text in the metadata of READY, in the entry `DESCRIPTION`. It has at most
`DESCRIPTION_BYTES_MAX` bytes, and all options of READY have their own limit: what is too long leaves out its schemas, then its
docstring. The broker answers `mmi.describe` with the text of the newest worker.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgpack
import msgspec

from mdp.errors import NoService, RequestError
from mdp.typed.calls import Signature
from mdp.wire.options import DESCRIPTION, OPTIONS_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

# Half of what READY may have; the rest is for the program's own metadata.
DESCRIPTION_BYTES_MAX: Final = 4096
# Bytes of the other options of READY.
_OTHERS_BYTES: Final = 256


class Asking(Protocol):
    """The methods of a client that are used here and by stubs."""

    @property
    def request(self) -> Callable[..., Awaitable[Sequence[bytes]]]: ...

    @property
    def stream(self) -> Callable[..., AsyncGenerator[list[bytes], None]]: ...


class Description(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Description of a service.

    Attributes:
        service: its name.
        signature: parameters and result of its function, empty if it is not known.
        doc: docstring of the function.
        version: of the worker's program.
        stream: the function is a generator: it is called with `call_stream`.
        arguments: JSON schema of an object with all arguments, in the order of the parameters; empty if it is not known.
        by_name: arguments that can be given by name only.
        result: JSON schema of the result, or of each value of a generator.
        definitions: JSON schemas of the classes in them, in `#/$defs`.
    """

    service: str
    signature: str = ""
    doc: str = ""
    version: str = ""
    stream: bool = False
    arguments: dict[str, Any] = {}
    by_name: list[str] = []
    result: dict[str, Any] = {}
    definitions: dict[str, Any] = msgspec.field(default_factory=dict, name="$defs")


def description_of(function: Callable[..., Any], service: str, version: str = "") -> Description:
    """Return the description of a typed function; raises TypeError."""
    signature = Signature(function)
    try:
        arguments, result, definitions = signature.json_schemas()
    except TypeError:  # JSON has no such type: the service can be called all the same
        arguments, result, definitions = {}, {}, {}
    return Description(
        service=service,
        signature=str(signature),
        doc=inspect.getdoc(function) or "",
        version=version,
        stream=inspect.isasyncgenfunction(function),
        arguments=arguments,
        by_name=signature.by_name,
        result=result,
        definitions=definitions,
    )


def announced(description: Description, metadata: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the metadata of a worker with as much of the description as there is space for."""
    shorter = msgspec.structs.replace(description, arguments={}, by_name=[], result={}, definitions={})
    for one in (description, shorter, msgspec.structs.replace(shorter, doc="")):
        text = msgspec.json.encode(one)
        if len(text) > DESCRIPTION_BYTES_MAX:
            continue
        whole = {**(metadata or {}), DESCRIPTION: text.decode()}
        try:
            if len(msgpack.packb(whole)) + _OTHERS_BYTES <= OPTIONS_BYTES_MAX:
                return whole
        except (TypeError, ValueError, OverflowError):
            break  # the program's own metadata; the worker refuses it with its reason
    return metadata


async def describe(client: Asking, service: str | bytes) -> Description:
    """Ask the broker for the description of a service.

    Only the name is known of services whose workers do not announce one: handlers of whole requests, and other dialects than MDP/0.3.

    Raises:
        NoService: no worker offers it.
        RequestError: the broker does not answer such questions, or has no answer.
    """
    name = service if isinstance(service, str) else service.decode(errors="replace")
    code, *data = await client.request("mmi.describe", service if isinstance(service, bytes) else service.encode())
    if code == b"404":
        raise NoService(name)
    try:
        if code != b"200" or len(data) != 1:
            raise RequestError(name, text=f"the broker answers mmi.describe with {code[:40].decode('ascii', 'backslashreplace')}")
        description = msgspec.json.decode(data[0], type=Description)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(name, text=f"its description is not valid: {error}") from None
    return msgspec.structs.replace(description, service=name)
