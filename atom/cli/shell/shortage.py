"""What the system had no more of, in words for the person whose box it is. Pure.

Libraries say it in their own exceptions, some of them plain RuntimeErrors or ImportErrors, of
which only the words tell."""

import errno

from atom.base.errors import ShortageError

_NO_MEMORY = ("annot allocate memory", "can't allocate memory", "failed to map segment from")
"""The system's own words, as PyTorch, safetensors and the loader of libraries pass them on. The
loader's last ones come for a disk without the right to execute, too, but a box seldom has that."""
_NO_THREAD = ("can't start new thread", "no thread for")
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)


def shortage_words(fault: Exception) -> ShortageError | None:
    """None: it is something else."""
    number = fault.errno if isinstance(fault, OSError) else None
    said = str(fault).partition("\n")[0][:300]
    if isinstance(fault, MemoryError) or number == errno.ENOMEM or _is_said(_NO_MEMORY, said):
        more = f": {said}" if said else ""
        return ShortageError(f"host memory ran out{more}", "end other programs, then try again")
    if _is_said(_NO_THREAD, said):
        return ShortageError(
            f"the system gives no more threads: {said}",
            "free memory, or raise the limit: ulimit -u, TasksMax= of a service,"
            " --pids-limit of a container",
        )
    if number in _TOO_MANY_FILES:
        return ShortageError(
            f"too many open files: {said}",
            "raise the limit: ulimit -n, LimitNOFILE= of a service,"
            " --ulimit nofile= of a container",
        )
    return None


def _is_said(words: tuple[str, ...], said: str) -> bool:
    return any(each in said for each in words)
