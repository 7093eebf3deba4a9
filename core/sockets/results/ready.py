"""`Ready`, the result of an operation that was complete when its call returned, and `DONE`, that of a completed send."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextvars import Context

T = TypeVar("T")

# An exhausted iterator ends an await with None, like a generator that returns; compiled, it costs a third of one.
_ENDED: Final = cast("Generator[Any, None, None]", iter(()))


@mypyc_attr(free_list_len=1)  # one is made and dropped for each message that is there when it is received
class Ready(Generic[T]):
    """A completed result."""

    __slots__ = ("_value",)

    # Marks a future for asyncio (`asyncio.isfuture`); no task has to wait for this one.
    _asyncio_future_blocking = False

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, T]:
        return self._value
        yield  # unreachable, but makes this a generator function

    def __iter__(self) -> Generator[Any, None, T]:
        return self.__await__()

    def done(self) -> Literal[True]:
        return True

    def cancelled(self) -> Literal[False]:
        return False

    def result(self) -> T:
        return self._value

    def exception(self) -> None: ...  # return None: an operation that fails at once raises at the call

    def cancel(self, msg: object = None) -> Literal[False]:
        return False

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Call it in the next loop iteration."""
        asyncio.get_running_loop().call_soon(callback, self, context=context)

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Return 0: callbacks of a completed operation are scheduled at once."""
        return 0


class _Done(Ready[None]):
    """The result of every completed send."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None)

    def __await__(self) -> Generator[Any, None, None]:
        return _ENDED


DONE: Final[Ready[None]] = _Done()
