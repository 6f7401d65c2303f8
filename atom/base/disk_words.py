"""Why a write failed, for the person whose disk it is."""

import errno


def why_not_written(problem: Exception) -> str:
    """Of an OSError, or of what a library made of one: safetensors keeps its number in words."""
    number = getattr(problem, "errno", None)
    if number == errno.ENOSPC or f"os error {errno.ENOSPC}" in str(problem):
        return "the disk is full"
    if number == errno.EDQUOT or f"os error {errno.EDQUOT}" in str(problem):
        return "your quota of the disk is used up"
    return getattr(problem, "strerror", None) or str(problem)
