"""Why a write failed, for the person whose disk it is."""

import errno
import os
import re

_NUMBER = re.compile(r"os error ([0-9]+)")


def why_not_written(problem: Exception) -> str:
    """Of an OSError, or of what a library made of one: safetensors keeps its number in words."""
    number = getattr(problem, "errno", None)
    if number is None and (told := _NUMBER.search(str(problem))):
        number = int(told[1])
    if number == errno.ENOSPC:
        return "the disk is full"
    if number == errno.EDQUOT:
        return "your quota of the disk is used up"
    return str(problem) if number is None else os.strerror(number)
