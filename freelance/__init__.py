"""Freelance: a client that reaches any of several servers without a broker between them, and the server for it.

    async with freelance.Server("tcp://10.0.0.7:5055", handler=lambda body: body) as server:
        await server.serve_forever()

    async with freelance.Client(["tcp://10.0.0.7:5055", "tcp://10.0.0.8:5055"]) as client:
        reply = await client.request(b"hello")

Three models: 3, the default, monitors all servers and asks the best one (RFC 10); 2 asks all at once and takes the first answer;
1 asks one after the other. `Names` puts logical names in place of endpoints (`name://shop`).
`specs/freelance.md` has the rules.
"""

from majordomo_toolkit import __version__
from freelance import errors
from freelance.client import Client
from freelance.errors import *  # noqa: F403
from freelance.models.server_list import Health
from freelance.names.resolver import Listing, Names
from freelance.names.server import NameServer
from freelance.server import Server
from freelance.sync import SyncClient

__all__ = ["Client", "Health", "Listing", "NameServer", "Names", "Server", "SyncClient", "__version__"]
__all__ += errors.__all__  # a type checker takes what is not named here for private
