"""Z85 text of keys: `core.utils.z85` in place of `zmq.utils.z85`."""

from __future__ import annotations

from core.zmtp.z85 import decode, encode

__all__ = ["decode", "encode"]
