"""gRPC on asyncio: a server and a client of one unary method without protobuf. There is no broker between them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from benchmarks.open_loop import measure
from benchmarks.program import Options, body_of, main, ready, report, run_on_loop

METHOD = "/benchmark.Echo/Echo"


def serve(options: Options) -> None:
    """Answer each request with its body."""

    async def run() -> None:
        grpc = import_module("grpc")

        async def echo(request: bytes, _: Any) -> bytes:
            return request

        handler = grpc.unary_unary_rpc_method_handler(echo)
        server = import_module("grpc.aio").server(maximum_concurrent_rpcs=None)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Echo", {"Echo": handler}),))
        assert server.add_insecure_port(options.endpoint.removeprefix("tcp://"))
        await server.start()
        ready()
        await server.wait_for_termination()

    run_on_loop(run())


def ask(options: Options) -> None:
    """Ask in a closed loop, and at parts of the rate that this reaches."""

    async def run() -> None:
        body = body_of(options.size)
        async with import_module("grpc.aio").insecure_channel(options.endpoint.removeprefix("tcp://")) as channel:
            method = channel.unary_unary(METHOD)
            assert await method(body, wait_for_ready=True) == body

            async def once() -> None:
                assert await method(body) == body

            ready()
            report(await measure(once, options))

    run_on_loop(run())


if __name__ == "__main__":
    main({"serve": serve, "ask": ask})
