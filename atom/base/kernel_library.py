"""Loading what `build_kernels` made. Calls through ctypes release the interpreter's lock."""

import ctypes
import shlex
import sys
from pathlib import Path

from atom.base.build_kernels import library_of, source_digest
from atom.base.errors import MismatchError

BUILDING = shlex.join([sys.executable or "python3", "-m", "atom.base.build_kernels"])
"""With the Python that runs this: no shell may have activated its folder."""
_HINT = f"run `{BUILDING}` (it needs a C compiler), or install again"


def load(source: Path, library: Path | None = None) -> ctypes.CDLL:
    """The library made from `source` as it is now; `library` if it lies elsewhere than usual.

    Raises: MismatchError when it is missing, or was made from another source.
    """
    library = library or library_of(source)
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as problem:
        raise MismatchError(f"{source.stem} are not compiled: {problem}", _HINT) from problem
    if _digest_in(loaded) != source_digest(source):
        raise MismatchError(f"{library} was compiled from another version of Atom", _HINT)
    return loaded


def _digest_in(library: ctypes.CDLL) -> str:
    """Empty: it is not a library of ours."""
    try:
        digest = library.atom_source_digest
    except AttributeError:
        return ""
    digest.restype = ctypes.c_char_p
    found: bytes = digest()
    return found.decode()
