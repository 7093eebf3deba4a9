"""The context of a process, shared by parts of a program that do not know each other: `Context.instance()`."""

from __future__ import annotations

import threading
from types import GenericAlias
from typing import Any, ClassVar, Final, Self

_LOCK: Final = threading.RLock()  # a constructor may call `instance` of another class


class SharedInstance:
    """Class of contexts with one shared instance in each process."""

    __slots__ = ()

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)  # pyzmq's are generic: `zmq.Context[MySocket]`
    _instance: ClassVar[Any] = None  # inherited by a subclass, unless it has its own

    closed: bool
    parent: int  # process that was forked, 0 in the process of the context

    @classmethod
    def instance(cls, *arguments: Any, **options: Any) -> Self:
        """Return the context of this process; make it if there is none.

        A closed context, or the context of the parent of a forked process, is replaced.
        A program that needs isolation, or several event loops at the same time, makes its own contexts.

        Args:
            arguments: of the class, used only when it is made.
            options: the same.
        """
        with _LOCK:
            shared = cls._instance
            if shared is None or shared.closed or shared.parent:
                shared = cls._instance = cls(*arguments, **options)
            return shared  # type: ignore[no-any-return]  # of this class or of its parent, as in ZeroMQ's Python binding
