"""Boxes made below PyNaCl's checked functions are the same boxes, and PyNaCl is there only where CURVE is."""

from __future__ import annotations

import subprocess
import sys

import pytest
from nacl.bindings import crypto_box_afternm as checked_seal

from core.security.nacl import (
    MAC_BYTES,
    BoxError,
    SharedKey,
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_open_afternm,
    crypto_secretbox,
    crypto_secretbox_open,
    too_old,
)

KEY, NONCE = bytes(range(32)), bytes(range(24))
WITHOUT_CURVE = """
import asyncio, sys
import core, mdp, mdp.commands.main

async def main():
    async with mdp.Broker() as broker, core.Context() as context:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        dealer = context.socket(core.DEALER)
        dealer.connect(endpoint)
        await dealer.send_multipart([b"", b"MDPC01", b"mmi.service", b"echo"])
        assert (await dealer.recv_multipart())[-1] == b"404"

asyncio.run(main())
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("nacl", "cffi", "_cffi_backend")))
"""


@pytest.mark.parametrize("size", [0, 1, 17, 255, 256, 5000])
def test_what_is_sealed_here_opens_there_and_the_other_way_round(size: int) -> None:
    shared = SharedKey(KEY)
    assert shared.key == KEY
    message = bytes(at % 251 for at in range(size))
    scratch, view = shared.scratch(size + MAC_BYTES)
    assert shared.seal_into(scratch, message, size, NONCE, KEY) == 0
    box = bytes(view)
    assert box == checked_seal(message, NONCE, KEY)
    behind = b"something before" + box
    scratch, view = shared.scratch(size + MAC_BYTES)
    assert shared.open_into(scratch, shared.pointer(behind) + len(behind) - len(box), len(box), NONCE, KEY) == 0
    assert view[:size] == message
    forged = box[:-1] + bytes((box[-1] ^ 1,))
    assert shared.open_into(scratch, shared.pointer(forged), len(forged), NONCE, KEY) != 0


def test_the_installed_pynacl_lacks_nothing() -> None:
    assert too_old() == ""


def test_what_does_not_open_says_so() -> None:
    with pytest.raises(BoxError):
        crypto_box_open_afternm(crypto_box_afternm(b"x", NONCE, KEY), NONCE, bytes(32))
    with pytest.raises(BoxError):
        crypto_secretbox_open(crypto_secretbox(b"x", NONCE, KEY), NONCE, bytes(32))
    with pytest.raises(BoxError):
        crypto_box_beforenm(bytes(32), KEY)


def test_a_broker_without_curve_does_without_pynacl() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_CURVE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
