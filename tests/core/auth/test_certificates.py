"""core.auth.certificates: files of CURVE keys, and which are refused."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
import zmq.auth

from core import auth

if TYPE_CHECKING:
    from pathlib import Path


def test_each_side_reads_what_the_other_writes(tmp_path: Path) -> None:
    for writer, reader in ((auth, zmq.auth), (zmq.auth, auth)):
        folder = tmp_path / writer.__name__
        folder.mkdir()
        public, secret = writer.create_certificates(str(folder), "ann")
        assert reader.load_certificate(public) == writer.load_certificate(public)
        assert reader.load_certificate(secret) == writer.load_certificate(secret)
        assert reader.load_certificate(public)[1] is None
        assert reader.load_certificates(folder) == {writer.load_certificate(secret)[0]: True}


@pytest.mark.skipif(os.name != "posix", reason="permissions of files")
def test_nobody_else_may_read_the_secret_file(tmp_path: Path) -> None:
    (tmp_path / "ann.key_secret").write_text("old")
    (tmp_path / "ann.key_secret").chmod(0o644)
    _, secret = auth.create_certificates(tmp_path, "ann", {"owner": "ann"})
    assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600
    assert "owner = ann" in (tmp_path / "ann.key").read_text()


@pytest.mark.parametrize("text", ["", "curve\n", 'public-key = "short"\n', "# public-key = x\n", "\x00\xff"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "wrong.key"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match="no public key"):
        auth.load_certificate(file)


def test_files_and_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no certificate file"):
        auth.load_certificate(tmp_path / "none.key")
    with pytest.raises(OSError, match="no folder"):
        auth.load_certificates(tmp_path / "none")
