"""Service `geo.nearest` of the demo: the nearest other place of a table, and its distance.

A worker's handler: `mdp worker --service geo.nearest --handler mdp.spark.demo.nearest:nearest`. Body frames `[code, latitude, longitude]`,
text and degrees; the reply is one frame with a msgpack map `{"nearest": code, "km": distance}`. The table is the CSV file named by
`MDP_GEO_TABLE`, by default the airports in the package. `MDP_GEO_SERVICE_MS` delays each answer by that many milliseconds, as a service
with a database would.
"""

from __future__ import annotations

import asyncio
import csv
import math
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mdp import Request

# Mean radius of the Earth (IUGG); distances on this sphere are within 0.6 %.
EARTH_RADIUS_KM = 6371.0088


class Places:
    """Table of places on a sphere, as unit vectors: the nearest place has the largest dot product.

    `degrees` are latitude and longitude of each, in that order.
    """

    def __init__(self, codes: list[str], degrees: list[tuple[float, float]]) -> None:
        self.codes = codes
        self._vectors: NDArray[np.float64] = np.array([_unit_vector(*place) for place in degrees], dtype=np.float64)

    @classmethod
    def read(cls, path: Path) -> Places:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return cls([row["iata"] for row in rows], [(float(row["latitude"]), float(row["longitude"])) for row in rows])

    def nearest(self, code: str, latitude: float, longitude: float) -> tuple[str, float]:
        """Return the place nearest to a point, except the named one, and its great-circle distance in kilometres."""
        here = np.array(_unit_vector(latitude, longitude))
        for number in np.argsort(-(self._vectors @ here), kind="stable")[:2]:
            if self.codes[number] != code:
                # The chord is exact for close places, where the dot product loses its digits.
                chord = float(np.linalg.norm(self._vectors[number] - here))
                return self.codes[number], 2 * EARTH_RADIUS_KM * math.asin(min(chord / 2, 1.0))
        raise LookupError(f"the table has no place but {code}")


def _unit_vector(latitude: float, longitude: float) -> tuple[float, float, float]:
    phi, lam = math.radians(latitude), math.radians(longitude)
    return math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi)


def airports_file() -> Path:
    """Return the table of airports: in the installed package, or in the source tree."""
    installed = Path(__file__).with_name("airports.csv")
    return installed if installed.is_file() else Path(__file__).parents[3] / "examples" / "data" / "airports.csv"


@cache
def _table() -> Places:
    return Places.read(Path(os.environ.get("MDP_GEO_TABLE") or airports_file()))


async def nearest(request: Request) -> bytes:
    """Answer `[code, latitude, longitude]` with a msgpack map `{"nearest": code, "km": distance}`."""
    code, latitude, longitude = (frame.decode() for frame in request.body)
    place, km = _table().nearest(code, float(latitude), float(longitude))
    service_ms = float(os.environ.get("MDP_GEO_SERVICE_MS") or 0)
    if service_ms > 0:
        await asyncio.sleep(service_ms / 1000)
    answer: dict[str, Any] = {"nearest": place, "km": round(km, 3)}
    return bytes(msgpack.packb(answer))
