"""A relaxed REQ whose send fails, with our library or with libzmq.

    python -m tests.interop.relaxed_req

does it with libzmq in a process of its own, and prints the error of the receive that follows. libzmq ends that process now and then:
its REQ takes back the request before while its session is in the middle of it and the peer leaves (`clean_pipes` in `session_base.cpp`).
"""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from typing import Any

import zmq
import zmq.asyncio

from tests.scenes.programs import ROOT

__all__ = ["error_of_the_next_receive", "error_with_libzmq"]

RUNS_MAX = 50  # one in eight is ended by libzmq when the machine is busy


async def error_of_the_next_receive(module: Any, context: Any) -> str:
    """Send until the queue is full, receive, and return the name of the error."""
    req, router = context.socket(module.REQ), context.socket(module.ROUTER)
    req.req_relaxed = 1
    req.linger = router.linger = 0
    try:
        req.bind("tcp://127.0.0.1:*")
        endpoint = req.LAST_ENDPOINT
        router.connect(endpoint)
        req.sndtimeo = 60_000
        await req.send(b"first")
        await router.recv_multipart()
        router.disconnect(endpoint)
        req.sndtimeo = 20
        while True:  # until it has noticed
            try:
                await req.send(b"second")
            except module.Again:
                break
        try:
            await req.recv(module.NOBLOCK)
        except module.ZMQError as refused:
            return errno.errorcode.get(refused.errno, "EFSM" if refused.errno == module.EFSM else str(refused.errno))
        return "none"
    finally:
        req.close()
        router.close()


async def error_with_libzmq() -> str:
    """Return what libzmq's error is, from the first process that it does not end itself."""
    for _ in range(RUNS_MAX):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.interop.relaxed_req"), cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, complaint = await process.communicate()
        if process.returncode == -signal.SIGABRT and b"session_base.cpp" in complaint:
            continue
        assert process.returncode == 0, complaint.decode()
        return out.decode().strip()
    raise AssertionError(f"libzmq ended its process {RUNS_MAX} times")


async def main() -> None:
    context = zmq.asyncio.Context()
    print(await error_of_the_next_receive(zmq, context))  # noqa: T201
    context.destroy(linger=0)


if __name__ == "__main__":
    asyncio.run(main())
