"""Received frames that know their sender, from `recv(copy=False)`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.constants import MORE
from core.errors import EINVAL, ZMQError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOTHING: dict[bytes, bytes] = {}


class Frame(bytes):
    """A frame: `bytes` with the properties of its message.

    The bytes are copied once: here `copy=False` gives access to the properties, and is not faster. Receiving without it costs nothing
    more.

    Attributes:
        more: whether its message goes on.
    """

    def __new__(
        cls,
        data: bytes | bytearray | memoryview | None = b"",
        track: bool = False,
        copy: bool | None = None,
        copy_threshold: int | None = None,
        *,
        more: bool = False,
        properties: Mapping[bytes, bytes] = _NOTHING,
    ) -> Frame:
        """See the class; raises TypeError: text, or another object without a buffer."""
        made = super().__new__(cls, b"" if data is None else memoryview(data) if not isinstance(data, bytes) else data)
        made.more = more
        made._properties = properties
        return made

    more: bool
    _properties: Mapping[bytes, bytes]

    @property
    def bytes(self) -> bytes:
        """The bytes alone."""
        return bytes.__getitem__(self, slice(None))

    @property
    def buffer(self) -> memoryview:
        """A view of the bytes."""
        return memoryview(self)

    def get(self, option: int | str) -> Any:
        """Return a property of the message: `User-Id`, `Peer-Address`, `Socket-Type`, `Identity`, or MORE.

        User-Id is the peer's name from the authenticator, never from the peer itself. Names are not case-sensitive.

        Raises:
            ZMQError: EINVAL, the message has no such property.
        """
        if isinstance(option, int):
            if option == MORE:
                return int(self.more)
        else:
            value = self._properties.get(option.lower().encode())
            if value is not None:
                return value.decode("utf-8", "backslashreplace")
        raise ZMQError(EINVAL, f"the message has no property {option!r}")

    def __getitem__(self, key: Any) -> Any:
        return self.get(key) if isinstance(key, str) else super().__getitem__(key)


Message = Frame  # its older name


def framed(message: Sequence[bytes], properties: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the frames of a message with its properties; existing `Frame`s are kept."""
    last = len(message) - 1
    return [
        frame if type(frame) is Frame else Frame(frame, more=number < last, properties=properties) for number, frame in enumerate(message)
    ]
