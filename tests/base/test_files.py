"""What the person at the keyboard reads of a disk that took no write."""

import errno
import os

import pytest
from safetensors import SafetensorError

from atom.base.files import why_not_written


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (refused(errno.ENOSPC), "the disk is full"),
        (refused(errno.EDQUOT), "your quota of the disk is used up"),
        (refused(errno.EROFS), "Read-only file system"),
        (OSError("a word of its own"), "a word of its own"),
        (SafetensorError("InvalidHeader"), "InvalidHeader"),
    ],
)
def test_each_cause_has_its_words(problem: Exception, said: str) -> None:
    assert why_not_written(problem) == said
