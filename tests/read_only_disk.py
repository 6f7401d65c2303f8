"""A disk that turns read-only while it is written to, as ext4 does after an error."""

import errno
import os
from typing import NoReturn

import pytest


def turn_read_only(patch: pytest.MonkeyPatch) -> None:
    """Nothing is synced, renamed or removed any more: such a disk refuses to remove even a file
    that is not there."""

    def refused(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("fsync", "replace", "unlink"):
        patch.setattr(os, name, refused)
