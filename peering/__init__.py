"""Brokers that lend each other workers (zguide chapter 3, inter-broker routing).

    async with peering.Broker("DC1", peers={"DC2": None, "DC3": ("tcp://10.0.0.3:5571", "tcp://10.0.0.3:5572")}) as broker:
        await broker.serve_forever()

Clients are REQ sockets, workers REQ or heartbeating DEALER sockets. `specs/peering.md` has the rules.
"""

from majordomo_toolkit import __version__
from peering import errors
from peering.broker import Broker, cloud_endpoints, endpoint_of
from peering.errors import *  # noqa: F403
from peering.peer_router import PeerRouter

__all__ = ["Broker", "PeerRouter", "cloud_endpoints", "endpoint_of", "__version__"]
__all__ += errors.__all__  # a type checker takes what is not named here for private
