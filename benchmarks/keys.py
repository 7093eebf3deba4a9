"""Key pairs of the works over CURVE. They are public and protect nothing, but cost as much as any others."""

from __future__ import annotations

from typing import Final

__all__ = ["CLIENT_PUBLIC", "CLIENT_SECRET", "SERVER_PUBLIC", "SERVER_SECRET"]

SERVER_PUBLIC: Final = b"s>-eA+o$djN0P//.p-BixZHNvykFjGbsLMs6O.F]"
SERVER_SECRET: Final = b"}.?LXkQ@2d-n^Lci7H$n?CMLN6mC?/ZdeTnZ?q$e"
CLIENT_PUBLIC: Final = b"b$gJa/YY?D&ncT[..2zPF7P{BjMs19^yymjy-UIw"
CLIENT_SECRET: Final = b"Bszt*niTQ]?5E:lS6ocNB{$idTG9d^J@dL)-z+Sg"
