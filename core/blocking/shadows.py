"""Shadows: second objects for the same blocking context or socket."""

from __future__ import annotations

from typing import Any, ClassVar, Self, TypeVar

__all__ = ["Shadowable"]

_S = TypeVar("_S", bound="Shadowable")


class Shadowable:
    """Base of objects that another object can stand for: it closes nothing when it is collected."""

    _what: ClassVar[str]  # for messages
    _inner_class: ClassVar[type]  # of the asynchronous object inside
    _shadow_obj: Any = None

    @classmethod
    def shadow(cls, address: Any) -> Self:
        """Return another object for a blocking one.

        Args:
            address: the object, or its `underlying`.

        Raises:
            TypeError: not such an object; an address of libzmq's has no meaning here.
            WrongOwner: an object of `core`.
        """
        is_blocking = isinstance(address, Shadowable) and address._inner_class is cls._inner_class
        if not is_blocking and not isinstance(address, cls._inner_class):
            raise TypeError(f"{address!r} is not a blocking {cls._what}")
        return cls(address)  # type: ignore[call-arg]  # one of `core` is refused there

    @property
    def underlying(self: _S) -> _S:
        """The object that this one shadows, or itself; equal if two objects are the same."""
        found: _S = self if self._shadow_obj is None else self._shadow_obj.underlying
        return found

    @property
    def _shadow(self) -> bool:
        return self._shadow_obj is not None

    def __copy__(self) -> Self:
        return self.shadow(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.shadow(self)
