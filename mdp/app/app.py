"""The app: several services of one program, with what they share.

    app = mdp.App()

    @app.lifespan
    async def resources(app):
        async with open_pool() as pool:          # before the first READY
            yield pool                           # is app.state
                                                 # closed after the last request
    @app.middleware
    async def log(request, call_next):
        reply = await call_next(request)
        print(request.service, request.user)
        return reply

    @app.service("total", concurrency=4)
    async def total(lines: list[Line], discount: float = 0.0) -> float: ...

    async with app.serve("tcp://broker:5555"): ...

`mdp worker --app module:app` does the same. All services have one connection to the broker, to each of its shards if it has some, and each
has its own credit and concurrency. A broker of MDP/0.1 or 0.2, or one that is older, gets a connection for each service.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import core
from mdp.app.dependencies import injected
from mdp.app.middleware import Middleware
from mdp.session.shared_connection import SharedConnections
from mdp.worker.handler import note_handler, service
from mdp.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from core.security.credentials import Secured
    from mdp.worker.handler import ServingSettings, WorkerSettings

F = TypeVar("F", bound="Callable[..., Any]")
M = TypeVar("M", bound=Middleware)


class App:
    """Services of one program.

    Attributes:
        state: what the lifespan has yielded, None without one or outside of it; of several, the last one's.
    """

    def __init__(self) -> None:
        self.state: Any = None
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._middleware: list[Middleware] = []
        self._lifespans: list[Callable[..., Any]] = []

    @property
    def services(self) -> list[str]:
        """Names of the services, in order of definition."""
        return [*self._handlers]

    def service(self, name: str, *, inline: bool = False, **options: Unpack[WorkerSettings]) -> Callable[[F], F]:
        """Add a service; arguments and result as for `mdp.service`, and parameters with `mdp.Depends`.

        Args:
            name: of the service.
            inline: call a plain function on the event loop instead of a thread.
            options: keyword arguments of `mdp.Worker`, e.g. `concurrency=4`.

        Raises:
            TypeError: (by the decorator) the signature cannot be that of a handler; the text says what to change.
            ValueError: (by the decorator) the app has a service of this name.
        """

        def add(function: F) -> F:
            if name in self._handlers:
                raise ValueError(f"the app has a service {name!r} already")
            handler = injected(function)
            if handler is function:
                handler = _copy(function)
            self._handlers[name] = service(name, inline=inline, **options)(handler)
            note_handler(function, self._handlers[name])
            return function

        return add

    def lifespan(self, function: F) -> F:
        """Add resources: an asynchronous generator that yields once, or a function that returns an asynchronous context manager.

        It may take the app. Several are entered in the order of definition, and left in the opposite order.
        """
        self._lifespans.append(function)
        return function

    def middleware(self, function: M) -> M:
        """Add middleware, `async (request, call_next) -> reply`; the first one is the outermost. See `mdp.app.middleware`."""
        self._middleware.append(function)
        return function

    def workers(
        self,
        broker: str | Sequence[str],
        *,
        make: Callable[..., Worker] = Worker,
        context: core.Context | None = None,
        security: Secured | None = None,
        **options: Unpack[ServingSettings],
    ) -> list[Worker]:
        """Return a worker for each service, not entered yet. `serve` enters them within the lifespan.

        Args:
            broker: endpoint, or several in order of preference.
            make: a subclass of `mdp.Worker`.
            context: of the sockets; each worker has its own when left out.
            security: of its own context.
            options: keyword arguments of `mdp.Worker`; they override those of the services.

        Raises:
            ValueError: the app has no services, or a number is out of range.
            TypeError: an unknown option.
        """
        if not self._handlers:
            raise ValueError("the app has no services")
        options["middleware"] = (*self._middleware, *options.get("middleware", ()))
        # Workers with contexts of their own end their connections with these.
        shared = None if context is None else SharedConnections()
        return [make(broker, handler, context=context, security=security, shared=shared, **options) for handler in self._handlers.values()]

    @asynccontextmanager
    async def resources(self) -> AsyncIterator[Any]:
        """Run the lifespan alone, as `serve` does: for tests, and for programs that make the workers themselves."""
        async with AsyncExitStack() as stack:
            for lifespan in self._lifespans:
                self.state = await stack.enter_async_context(_block(lifespan, self))
            yield self.state
        self.state = None

    @asynccontextmanager
    async def serve(
        self,
        broker: str | Sequence[str],
        *,
        context: core.Context | None = None,
        security: Secured | None = None,
        **options: Unpack[ServingSettings],
    ) -> AsyncIterator[list[Worker]]:
        """Serve all services within the block: the lifespan is entered first and left last.

        Args:
            broker: endpoint, or several in order of preference.
            context: of the sockets; the app has its own when left out.
            security: of its own context.
            options: keyword arguments of `mdp.Worker`; they override those of the services.

        Returns:
            The workers, which register in the background.

        Raises:
            core.ZMQError: an endpoint is not valid.
            TypeError, ValueError: as for `workers`.
        """
        async with AsyncExitStack() as stack:
            if context is None:
                context = await stack.enter_async_context(core.Context(security=security))
                security = None
            workers = self.workers(broker, context=context, security=security, **options)
            await stack.enter_async_context(self.resources())
            await begin(workers, stack)
            yield workers


async def begin(workers: Sequence[Worker], stack: AsyncExitStack) -> None:
    """Enter workers, which the stack drains and closes at the same time."""  # one by one, each would take its own time
    begun: list[Worker] = []

    async def end(*error: Any) -> None:
        await asyncio.gather(*(worker.__aexit__(*error) for worker in begun))

    stack.push_async_exit(end)
    for worker in workers:
        await worker.__aenter__()
        begun.append(worker)


def _block(lifespan: Callable[..., Any], app: App) -> AbstractAsyncContextManager[Any]:
    make: Callable[..., Any] = asynccontextmanager(lifespan) if inspect.isasyncgenfunction(lifespan) else lifespan
    block: AbstractAsyncContextManager[Any] = make(app) if inspect.signature(lifespan).parameters else make()
    return block


def _copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that can be marked without changing the original, which other apps may serve under other names."""
    if not inspect.isfunction(function):
        return function
    twin = type(function)(function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__, twin.__doc__, twin.__annotations__ = function.__kwdefaults__, function.__doc__, function.__annotations__
    twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
    return twin
