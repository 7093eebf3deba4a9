"""Time limit of one attempt to connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONNECT_TIMEOUT_MS", "with_connect_timeout"]

# A system asks a machine that is off, or cut off, ever less often, up to a minute apart. A new attempt asks at once, so that programs find
# each other soon after the outage: a broker that starts waits for its workers, a server that may lead needs its witness.
CONNECT_TIMEOUT_MS: Final = 2500


def with_connect_timeout(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return socket options with this time limit, unless they have one; a proxy may need longer."""
    return {"connect_timeout": 0 if options.get("socks_proxy") else CONNECT_TIMEOUT_MS, **options}
