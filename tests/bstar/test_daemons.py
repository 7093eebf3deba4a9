"""bstar.cli: the bodies of `bstar run` and `bstar witness`, run without the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import bstar
from bstar.cli import ServerDaemonOptions, WitnessDaemonOptions, serve_server, serve_witness
from tests.scenes.lifetime import running

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_pair_with_a_witness_answers(tmp_path: Path) -> None:
    local, remote, witness = (f"ipc://{tmp_path}/{name}" for name in ("local", "remote", "witness"))
    front, back = f"ipc://{tmp_path}/front", f"ipc://{tmp_path}/back"
    ballots = str(tmp_path / "ballots")
    async with (
        running(serve_witness, WitnessDaemonOptions([witness], stores=[ballots])) as asked,
        running(serve_server, ServerDaemonOptions(True, local, remote, front, witness=witness)) as primary,
        running(serve_server, ServerDaemonOptions(False, remote, local, back, witness=witness)) as backup,
        bstar.Client(front, back, patience=60) as client,
    ):
        assert (await client.request(b"hello")) == [b"hello"]
        assert client.server == "primary"
    assert (asked.fields["pair_key"], primary.fields["role"], backup.fields["role"]) == (False, "primary", "backup")
