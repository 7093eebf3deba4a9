"""A peer that reads again after a long time does not hold up the others (N5, CURVE-10)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import zmq
import zmq.asyncio

import core
from core.pattern.reqrep import Router
from core.security.authenticator import curve_keypair
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC, SECRET = curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = curve_keypair()
COUNT = 60_000
CLEAR_BYTES = COUNT * (2 + 8)
SEALED_BYTES = COUNT * (2 + 8 + 8 + 16 + 1 + 8)
AT_ONCE_BYTES = 4096 * (2 + 8 + 8 + 16 + 1 + 8)
TRANSPORT_BYTES = 64 * 1024  # its high-water mark


async def waiting_for(router: core.Socket, dealer: core.Socket) -> None:
    """Send `COUNT` messages to a dealer that takes two of them."""
    await dealer.send(b"here")
    name, _ = await router.recv_multipart()
    for number in range(COUNT):
        await router.send_multipart([name, number.to_bytes(8, "big")])
    await eventually(lambda: waiting_bytes(router) > CLEAR_BYTES // 2)


def waiting_bytes(router: core.Socket) -> int:
    assert isinstance(router.pattern, Router)
    return max((pipe.waiting_bytes() for pipe in router.pattern.routes.values()), default=0)


def sockets(context: core.Context, directory: Path) -> tuple[core.Socket, core.Socket]:
    router = context.socket(core.ROUTER, linger=-1, sndhwm=0, curve_server=1, curve_secretkey=SECRET)
    dealer = context.socket(
        core.DEALER, linger=0, rcvhwm=1, curve_serverkey=PUBLIC, curve_secretkey=CLIENT_SECRET, curve_publickey=CLIENT_PUBLIC
    )
    router.bind(f"ipc://{directory}/r")
    dealer.connect(f"ipc://{directory}/r")
    return router, dealer


async def test_a_long_backlog_is_encrypted_in_parts(tmp_path: Path) -> None:
    """An iteration of the event loop that encrypts all would hold up the heartbeats of everybody else."""
    async with core.Context() as context:
        router, dealer = sockets(context, tmp_path)
        await waiting_for(router, dealer)
        most, reading = 0, True

        async def watch() -> None:
            nonlocal most
            while reading:
                most = max(most, waiting_bytes(router))
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        for number in range(COUNT):
            assert await dealer.recv() == number.to_bytes(8, "big")
        reading = False
        await watching
        assert most <= CLEAR_BYTES + AT_ONCE_BYTES + TRANSPORT_BYTES < SEALED_BYTES // 2


@pytest.mark.parametrize("finish", ["close", "disconnect"])
async def test_sock_15_all_of_a_long_backlog_is_sent_before_the_stream_ends(finish: str, tmp_path: Path) -> None:
    async with core.Context() as context:
        router, dealer = sockets(context, tmp_path)
        await waiting_for(router, dealer)
        if finish == "close":
            router.close()
        else:
            router.unbind(f"ipc://{tmp_path}/r")
        for number in range(COUNT):
            assert await dealer.recv() == number.to_bytes(8, "big")


async def test_a_dealer_of_libzmq_gets_all_of_a_long_backlog_in_order(tmp_path: Path) -> None:
    """CURVE-10: nonces go up from part to part."""
    async with core.Context() as context:
        router = context.socket(core.ROUTER, linger=0, sndhwm=0, curve_server=1, curve_secretkey=SECRET)
        router.bind(f"ipc://{tmp_path}/r")
        with zmq.asyncio.Context() as foreign, foreign.socket(zmq.DEALER) as dealer:
            dealer.linger, dealer.rcvhwm = 0, 1
            dealer.curve_serverkey, dealer.curve_publickey, dealer.curve_secretkey = PUBLIC, CLIENT_PUBLIC, CLIENT_SECRET
            dealer.connect(f"ipc://{tmp_path}/r")
            await dealer.send(b"here")
            name, _ = await router.recv_multipart()
            await router.send_many([[name, number.to_bytes(8, "big")] for number in range(COUNT)])
            for number in range(COUNT):
                assert await dealer.recv() == number.to_bytes(8, "big")
