"""`mdp dispatch` and its page, as a user runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from mdp.spark.commands import demo, dispatch
from mdp.spark.demo.nearest import airports_file
from mdp.spark.file_job import Input, Output, Tally, run_file_job
from tests.scenes.spark_session import Kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mdp.spark.demo.processes import Processes

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
SERVICE = "geo.nearest"
ROWS = 200


def some_airports(place: Path) -> Path:
    """Write a table of a few airports; the service knows all."""
    table = place / "airports.csv"
    table.write_text("".join(airports_file().read_text(encoding="utf-8").splitlines(keepends=True)[: ROWS + 1]), encoding="utf-8")
    return table


def run_job(spark: SparkSession, processes: Processes, source: Input, output: Output, request: tuple[str, ...]) -> Tally:
    to = {"broker": (processes.broker,), "service": SERVICE}
    return run_file_job(spark, source, output, request=request, window=64, timeout=20.0, attempts=2, **to)  # type: ignore[arg-type]


@pytest.fixture
def started(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Give commands the session of the tests; return what they would have started."""
    sessions: list[tuple[Any, ...]] = []

    def start(*arguments: Any, **_: Any) -> Kept:
        sessions.append(arguments)
        return Kept(spark)

    monkeypatch.setattr("mdp.spark.session.local_session", start)
    return sessions


def test_a_file_is_answered_as_a_user_runs_it(key_service: Processes, tmp_path: Path, started: list[tuple[Any, ...]]) -> None:
    output = tmp_path / "answered"
    arguments = ["--broker", key_service.broker, "--service", SERVICE, "--input", str(some_airports(tmp_path)), "--output", str(output)]
    columns = [word for name in ("iata", "latitude", "longitude") for word in ("--request", name)]
    schema = ["--schema", "nearest string, km double"]
    done = CliRunner().invoke(dispatch, [*arguments, *columns, *schema, "--master", "local[2]", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"rows": ROWS, "failed": 0, "sent_again": 0, "first_error": None, "statuses": {"OK": ROWS}}
    assert list(output.glob("*.parquet"))
    assert started == [("mdp dispatch", "local[2]")]


def test_rows_that_are_left_out_are_counted(spark: SparkSession, key_service: Processes, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("x\none\nfailing\ntwo\n")
    source, output = Input(str(tmp_path / "rows.csv"), "csv"), Output(str(tmp_path / "answered"), "parquet")
    asked = {"broker": (key_service.broker,), "service": "keys", "schema": "body string", "on_error": "drop", "timeout": 60.0}
    tally = run_file_job(spark, source, output, **asked)  # type: ignore[arg-type]
    assert (tally.rows, tally.failed, tally.statuses) == (3, 1, {"OK": 2, "HANDLER_ERROR": 1})
    assert spark.read.parquet(output.path).count() == 2


# The test above writes Parquet.
@pytest.mark.parametrize("output_format", ["json", pytest.param("csv", marks=pytest.mark.soak)])
def test_the_reply_is_text_where_no_schema_is_given(
    spark: SparkSession, key_service: Processes, tmp_path: Path, output_format: str
) -> None:
    source = tmp_path / "places.csv"
    source.write_text("iata,latitude,longitude\nX1,51.5,-0.1\nX2,nowhere,0\n")
    output = tmp_path / "answered"
    columns = ("iata", "latitude", "longitude")
    tally = run_job(spark, key_service, Input(str(source), "csv"), Output(str(output), output_format), columns)
    assert (tally.rows, tally.failed, tally.sent_again) == (2, 1, 0)
    assert "the handler failed" in str(tally.first_error)
    rows = spark.read.option("header", "true").format(output_format).load(str(output)).orderBy("iata").collect()
    assert "nearest" in rows[0]["reply"]
    assert [row["_status"] for row in rows] == ["OK", "HANDLER_ERROR"]


def test_text_and_json_are_read(spark: SparkSession, key_service: Processes, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    (tmp_path / "in.json").write_text('{"a": 1}\n{"a": 2}\n')
    for kind in ("text", "json"):
        source = tmp_path / f"in.{'txt' if kind == 'text' else kind}"
        tally = run_job(spark, key_service, Input(str(source), kind), Output(str(tmp_path / f"out-{kind}"), "parquet"), ())
        # One frame is no place: the service refuses each, and says so.
        assert (tally.rows, tally.failed) == (2, 2)
        assert "HANDLER_ERROR" in str(tally.first_error)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--input", "nowhere.csv"], "nowhere.csv"),
        (["--input", "data.bin"], "--format is needed"),
        (["--input", "data.csv", "--output", "."], "exists"),
        (["--input", "data.csv", "--window", "0"], "--window"),
        (["--input", "data.csv", "--broker", "nonsense"], "--broker"),
        (["--input", "data.csv", "--on-error", "ignore"], "--on-error"),
    ],
)
def test_wrong_usage_is_said_before_spark_starts(
    arguments: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").touch()
    (tmp_path / "data.bin").touch()
    result = CliRunner().invoke(dispatch, ["--service", "s", "--output", "out", *arguments])
    assert result.exit_code == 2
    assert reason in result.output
    assert "starting Spark" not in result.output


@pytest.mark.usefixtures("started")
def test_a_job_that_fails_says_why_in_one_line(key_service: Processes, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\n")
    places = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out")]
    arguments = ["--broker", key_service.broker, "--service", SERVICE, *places, "--on-error", "fail"]
    done = CliRunner().invoke(dispatch, arguments)
    assert done.exit_code == 1
    last = done.output.strip().splitlines()[-1]
    assert "row 0 of partition 0 has no reply from geo.nearest: HANDLER_ERROR" in last


def test_the_options_of_the_demo_are_explained() -> None:
    result = CliRunner().invoke(demo, ["--help"])
    assert result.exit_code == 0
    assert "--kill" in result.output


def test_the_page_about_spark_runs_as_it_is_written(
    spark: SparkSession, key_service: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    first, (counting,) = blocks[0], [block for block in blocks if "Counts(spark" in block]
    functions = [block for block in blocks if "service_udf" in block or "ServiceTransformer" in block]
    assert len(functions) == 2
    for block in blocks:  # the examples do the same, and are run
        compile(block, "docs/spark.md", "exec")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples" / "data").mkdir(parents=True)
    some_airports(tmp_path / "examples" / "data")
    names: dict[str, object] = {}
    # Spark's own process stays where it was started.
    places = {"tcp://127.0.0.1:5555": key_service.broker, '"examples/': f'"{tmp_path}/examples/', '"out': f'"{tmp_path}/out'}

    def here(block: str) -> str:
        for shown, real in places.items():
            block = block.replace(shown, real)
        return block

    exec(here(first), names)
    assert spark.read.parquet(str(tmp_path / "out" / "airports")).filter("_status = 'OK' and km > 0").count() == ROWS
    try:
        for block in functions:
            exec(here(block), names)
        (queries,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
        texts, nearest, table = (spark.sql(query).collect() for query in queries.split(";") if query.strip())
    finally:
        spark.conf.unset("spark.mdp.broker")
    assert all("nearest" in json.loads(row["reply"]) for row in texts)
    assert len(nearest) == 3
    assert len(table) > 1
    assert {row["_status"] for row in table} == {"OK"}
    assert max(row["km"] for row in table) == nearest[0]["km"]
    assert (tmp_path / "out" / "model").is_dir()
    arguments = f'broker="{key_service.broker}", service="geo.nearest", request=("iata", "latitude", "longitude")'
    exec(here(counting).replace("...", arguments).replace("df", "airports").replace("print(", "counted = ("), names)
    assert names["counted"] == (ROWS, 0, 0)
