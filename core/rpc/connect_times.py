"""Attempts to connect: their times, and how one is explained that the security of one side refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# A system asks a machine that is off, or cut off, ever less often, up to a minute apart. A new attempt asks at once, so that programs find
# each other soon after the outage: a broker that starts waits for its workers, a server that may lead needs its witness.
CONNECT_TIMEOUT_MS: Final = 2500

# A plain socket does not connect again to a server that refused its key or password. An operator may add the key to a list, or start the
# server with other security: programs that wait for their server then need no restart. A dozen connections of one machine with an old
# password stay below the limit of wrong passwords (`GUESSES_MAX`), which would also lock out its other programs.
REFUSED_IVL_MS: Final = 30_000
# Before the reason of a server, or of ours, which waiting does not change.
OTHER_SECURITY: Final = "wants other security options"


def with_connect_times(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return socket options with these times, unless they have their own; a proxy may need longer to connect."""
    connect_timeout = 0 if options.get("socks_proxy") else CONNECT_TIMEOUT_MS
    return {"connect_timeout": connect_timeout, "refused_ivl": REFUSED_IVL_MS, **options}
