"""Compiles the rooms' kernels: `python -m atom.base.build_kernels`, and at every installation; and
loads them. Calls through ctypes release the interpreter's lock.

Each `<name>_kernels.c` of a room becomes a library beside it, with `kernel.h` in it. Needs a C
compiler (`$CC`, else `cc`) and nothing of Python's headers. `setup.py` runs this file alone,
before anything is installed, so it imports the standard library only, but for an error.
"""

import ctypes
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
SHARED = Path(__file__).with_name("kernel.h")
FLAGS = (
    "-std=c11", "-O3", "-fPIC", "-shared",
    "-ffp-contract=off",  # a multiply and an add are two roundings, except where it says fmaf
    "-fno-math-errno", "-fno-trapping-math",  # nobody looks at either: square roots vectorise
)  # fmt: skip


BUILDING = shlex.join([sys.executable or "python3", "-m", "atom.base.build_kernels"])
"""With the Python that runs this: no shell may have activated its folder."""


def sources() -> list[Path]:
    """All there are."""
    return sorted(PACKAGE.glob("**/*_kernels.c"))


def library_of(source: Path) -> Path:
    """Where the library made from `source` lies."""
    return source.with_name(f"lib{source.stem.replace('_', '')}.so")


def source_digest(source: Path) -> str:
    """Of the sources and flags as they are now: a library made from others is not used."""
    files = [source, SHARED, *sorted(source.parent.glob("*.h"))]
    content = b"".join(map(Path.read_bytes, files)) + " ".join(FLAGS).encode()
    return hashlib.sha256(content).hexdigest()


def compile_kernels(source: Path, library: Path) -> None:
    """Makes `library`, or replaces it while others may be using it.

    Raises: OSError without a compiler; subprocess.CalledProcessError when it fails; ValueError for
    a CC that is no command.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    aside = library.with_suffix(f".{os.getpid()}.partial")
    define = f'-DSOURCE_DIGEST="{source_digest(source)}"'
    command = [*compiler, *FLAGS, define, str(source), "-o", str(aside), "-lm"]
    try:
        subprocess.run(command, check=True)
        os.replace(aside, library)
    finally:
        aside.unlink(missing_ok=True)


def load(source: Path, library: Path | None = None) -> ctypes.CDLL:
    """The library made from `source` as it is now; `library` if it lies elsewhere than usual.

    Raises: MismatchError when it is missing, or was made from another source.
    """
    from atom.base.errors import MismatchError

    library, hint = library or library_of(source), f"run `{BUILDING}` (it needs a C compiler)"
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as problem:
        raise MismatchError(f"{source.stem} are not compiled: {problem}", hint) from problem
    digest = getattr(loaded, "atom_source_digest", None)
    if digest is not None:
        digest.restype = ctypes.c_char_p
    if digest is None or digest().decode() != source_digest(source):
        raise MismatchError(f"{library} was compiled from another version of Atom", hint)
    return loaded


def main() -> None:
    try:
        for source in sources():
            compile_kernels(source, library_of(source))
    except (OSError, ValueError, subprocess.CalledProcessError) as problem:
        sys.exit(f"error: {problem}\nhint:  install a C compiler, or name one in CC")


if __name__ == "__main__":
    main()
