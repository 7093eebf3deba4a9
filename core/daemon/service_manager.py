"""Notification of the service manager (systemd's protocol): ready, draining, alive.

Nothing is sent without a manager. With `Type=notify` a unit counts as started when its daemon serves; with `WatchdogSec=` a daemon whose
event loop is blocked is restarted.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

_MICROSECONDS = 1_000_000


class ServiceManager:
    """Connection to the service manager named in the environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # an abstract name on Linux
            self._address = "\0" + self._address[1:]
        self._failed = False
        period = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(period) / _MICROSECONDS if self._address and ours and period.isdigit() else 0.0

    def tell(self, *assignments: str) -> None:
        """Send `NAME=value` assignments; a failure is logged once and otherwise ignored."""
        if not self._address or not hasattr(socket, "AF_UNIX"):
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.setblocking(False)
                channel.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.warning("the service manager cannot be notified", extra={"address": self._address, "reason": error.strerror})
