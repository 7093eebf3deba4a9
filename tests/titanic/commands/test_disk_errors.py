"""titanic.commands.operator: errors of the disk of a store."""

from __future__ import annotations

import errno
import os

import pytest

from core.daemon.exit_codes import DiskFailed
from titanic.commands.operator import disk_errors


@pytest.mark.parametrize(("named", "place"), [(None, "/var/lib/store"), ("/var/lib/store/00000001.seg", "/var/lib/store/00000001.seg")])
def test_the_error_of_a_full_disk_has_its_place_and_what_to_do(named: str | None, place: str) -> None:
    """Allocating a segment fails without the name of a file."""
    with pytest.raises(DiskFailed) as failed, disk_errors("/var/lib/store"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), named)
    assert failed.value.message == f"{place}: No space left on device; free some space or choose another path"
