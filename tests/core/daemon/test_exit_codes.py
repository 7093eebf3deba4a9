"""core.daemon.exit_codes: errors become those with an exit code."""

from __future__ import annotations

import pytest

from core.daemon.exit_codes import BadConfig, RequestFailed, Unreachable, exits


@pytest.mark.parametrize("error,code", [(KeyError("a"), Unreachable), (LookupError("b"), RequestFailed), (ValueError("c"), BadConfig)])
def test_the_first_kind_that_fits_decides(error: Exception, code: type[Exception]) -> None:
    with pytest.raises(code) as ended, exits({KeyError: Unreachable, LookupError: RequestFailed, ValueError: BadConfig}):
        raise error
    assert str(ended.value) == str(error)


def test_other_errors_pass() -> None:
    with pytest.raises(OSError, match="disk"), exits({ValueError: BadConfig}):
        raise OSError("disk")
