"""Renames that survive a power cut, and the words for a failed write."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from atom.base.files import rename_durably, why_not_written
from atom.daemon.state_directory import write_atomically
from atom.swarm.identity import Identity
from atom.training.storage.disk import write_tensors


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (refused(errno.ENOSPC), "the disk is full"),
        (refused(errno.EDQUOT), "your quota of the disk is used up"),
        (refused(errno.EROFS), "Read-only file system"),
        (OSError("an unknown cause"), "an unknown cause"),
        (SafetensorError("InvalidHeader"), "InvalidHeader"),
    ],
)
def test_each_cause_has_its_words(problem: Exception, said: str) -> None:
    assert why_not_written(problem) == said


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_atomically(path, b"new"),
        lambda path: Identity.create().save(path),
        lambda path: write_tensors(path, {"a": torch.zeros(1)}, synced=True),
    ],
)
def test_a_new_name_is_on_the_disk_before_its_writer_goes_on(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the content, then the name, then the folder."""
    calls, sync, replace = list[str](), os.fsync, os.replace

    def synced(descriptor: int) -> None:
        calls.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))
        sync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        calls.append("the name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write(tmp_path / "state")
    assert calls == [calls[0], "the name", "."]
    assert calls[0].startswith("state.")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_syncs_no_folders_is_no_failure(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise refused(number)

    (tmp_path / "new").touch()
    monkeypatch.setattr(os, "fsync", fails)
    failure = pytest.raises(OSError, match="put/output error") if number == errno.EIO else None
    with failure or contextlib.nullcontext():
        rename_durably(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").exists()
