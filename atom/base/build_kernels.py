"""Compilation and loading of the C kernels.

`python -m atom.base.build_kernels` compiles them in place; so does every installation. Each file
`<name>_kernels.c` of a package, which includes `kernel.h`, becomes a shared library in its own
folder. Compiling needs a C compiler (`$CC`, else `cc`), but no headers of Python. Calls through
ctypes release the interpreter's lock.

`setup.py` runs this file by itself before Atom is installed. Therefore the file imports only the
standard library, except where `load` raises an error.
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
    "-ffp-contract=off",  # multiplying and adding round twice, except where the source says fmaf
    "-fno-math-errno", "-fno-trapping-math",  # unused here; without them square roots vectorise
)  # fmt: skip


BUILDING = shlex.join([sys.executable or "python3", "-m", "atom.base.build_kernels"])
"""Shell command that compiles the kernels. It names this interpreter by its full path, because the
virtual environment may not be activated."""


def sources() -> list[Path]:
    """Return all C sources that become libraries."""
    return sorted(PACKAGE.glob("**/*_kernels.c"))


def library_of(source: Path) -> Path:
    """Return the usual path of the library that is compiled from `source`."""
    return source.with_name(f"lib{source.stem.replace('_', '')}.so")


def source_digest(source: Path) -> str:
    """Return the SHA-256 (hexadecimal) of a source, its headers and the compiler flags.

    `load` refuses a library that was compiled from another digest.
    """
    files = [source, SHARED, *sorted(source.parent.glob("*.h"))]
    content = b"".join(map(Path.read_bytes, files)) + " ".join(FLAGS).encode()
    return hashlib.sha256(content).hexdigest()


def compile_kernels(source: Path, library: Path) -> None:
    """Compile `source` into `library`; processes that have loaded an older library keep it.

    Raises:
        OSError: there is no compiler, or the library cannot be written.
        subprocess.CalledProcessError: the compiler failed.
        ValueError: the environment variable CC is not a valid command line.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    partial = library.with_suffix(f".{os.getpid()}.partial")
    define = f'-DSOURCE_DIGEST="{source_digest(source)}"'
    command = [*compiler, *FLAGS, define, str(source), "-o", str(partial), "-lm"]
    try:
        subprocess.run(command, check=True)
        os.replace(partial, library)
    finally:
        partial.unlink(missing_ok=True)


def load(source: Path, library: Path | None = None) -> ctypes.CDLL:
    """Load the library that was compiled from the present content of `source`.

    Args:
        source: the C source.
        library: path of the library if it is not `library_of(source)`.

    Raises:
        MismatchError: the library is missing or was compiled from another version of the source.
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
    """Compile all kernels; exit with an error and a hint if that fails."""
    try:
        for source in sources():
            compile_kernels(source, library_of(source))
    except (OSError, ValueError, subprocess.CalledProcessError) as problem:
        sys.exit(f"error: {problem}\nhint:  install a C compiler, or name one in CC")


if __name__ == "__main__":
    main()
