"""Which mechanism a socket's connections use, made from its options (PLAIN-01, CURVE-17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.zmtp.command import encode_metadata
from core.zmtp.mechanism import Mechanism, NullMechanism

if TYPE_CHECKING:
    from core.options import Options

__all__ = ["new_mechanism"]


def new_mechanism(options: Options, type_name: bytes, announces_identity: bool, peer_address: str) -> Mechanism:
    """Return our side of the handshake of one new connection.

    Args:
        options: of the socket.
        type_name: Socket-Type of the metadata.
        announces_identity: Identity goes with it, empty if unset (ZMTP-38).
        peer_address: numeric, for the authenticator.
    """
    properties = [(b"Socket-Type", type_name)]
    if announces_identity:
        properties.append((b"Identity", options.routing_id))
    return NullMechanism(encode_metadata(properties), metadata_bytes_max=options.max_metadata_bytes)
