"""The demo's service, against the textbook formula and by brute force."""

from __future__ import annotations

import math

import pytest

from mdp.spark.demo.nearest import EARTH_RADIUS_KM, Places, airports_file

LONDON, PARIS, QUITO = (51.5074, -0.1278), (48.8566, 2.3522), (-0.1807, -78.4678)


def haversine_km(a: tuple[float, float], b: tuple[float, float]) -> float:
    phi_a, phi_b = math.radians(a[0]), math.radians(b[0])
    half = math.sin((phi_b - phi_a) / 2) ** 2
    half += math.cos(phi_a) * math.cos(phi_b) * math.sin(math.radians(b[1] - a[1]) / 2) ** 2
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(half))


def test_the_nearest_other_place_and_its_distance() -> None:
    places = Places(["LON", "PAR", "UIO"], [LONDON, PARIS, QUITO])
    code, km = places.nearest("LON", *LONDON)
    assert code == "PAR"
    assert km == pytest.approx(haversine_km(LONDON, PARIS), abs=1e-6)
    assert 343 < km < 344


def test_a_place_is_not_its_own_neighbour_but_another_at_the_same_spot_is() -> None:
    places = Places(["A", "B", "C"], [LONDON, LONDON, QUITO])
    assert places.nearest("A", *LONDON) == ("B", 0.0)
    assert places.nearest("B", *LONDON) == ("A", 0.0)
    assert places.nearest("elsewhere", *QUITO) == ("C", 0.0)


def test_a_table_of_one_has_no_neighbour() -> None:
    with pytest.raises(LookupError, match="no place but A"):
        Places(["A"], [LONDON]).nearest("A", *LONDON)


def test_the_airports_come_with_the_package() -> None:
    places = Places.read(airports_file())
    assert len(places.codes) == len(set(places.codes)) == 3376


def test_a_sample_of_airports_against_brute_force() -> None:
    import csv

    with airports_file().open(newline="", encoding="utf-8") as file:
        rows = [(r["iata"], (float(r["latitude"]), float(r["longitude"]))) for r in csv.DictReader(file)]
    places = Places.read(airports_file())
    for code, here in rows[::337]:
        expected = min(haversine_km(here, there) for other, there in rows if other != code)
        assert places.nearest(code, *here)[1] == pytest.approx(expected, abs=1e-5)
