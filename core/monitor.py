"""Reading of monitor sockets, under the name for programs: as `zmq.utils.monitor`."""

from __future__ import annotations

from core.sockets.monitor import parse_monitor_message, recv_monitor_message

__all__ = ["parse_monitor_message", "recv_monitor_message"]
