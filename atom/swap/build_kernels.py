"""Compiles the host kernels: `python -m atom.swap.build_kernels`, and at every installation.

Needs a C compiler (`$CC`, else `cc`) and nothing of Python's headers. `setup.py` runs this file
alone, before anything is installed, so it imports the standard library only.
"""

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("host_kernels.c")
LIBRARY = Path(__file__).with_name("libhostkernels.so")
FLAGS = (
    "-std=c11", "-O3", "-fPIC", "-shared",
    "-ffp-contract=off",  # a multiply and an add are two roundings, except where it says fmaf
    "-fno-math-errno", "-fno-trapping-math",  # nobody looks at either: square roots vectorise
)  # fmt: skip


def source_digest() -> str:
    """Of the source and flags as they are now: a library made from others is not used."""
    content = SOURCE.read_bytes() + " ".join(FLAGS).encode()
    return hashlib.sha256(content).hexdigest()


def compile_kernels(library: Path) -> None:
    """Makes `library`, or replaces it while others may be using it.

    Raises: OSError without a compiler; subprocess.CalledProcessError when it fails; ValueError for
    a CC that is no command.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    aside = library.with_suffix(f".{os.getpid()}.partial")
    define = f'-DSOURCE_DIGEST="{source_digest()}"'
    command = [*compiler, *FLAGS, define, str(SOURCE), "-o", str(aside), "-lm"]
    try:
        subprocess.run(command, check=True)
        os.replace(aside, library)
    finally:
        aside.unlink(missing_ok=True)


def main() -> None:
    try:
        compile_kernels(LIBRARY)
    except (OSError, ValueError, subprocess.CalledProcessError) as problem:
        sys.exit(f"error: {problem}\nhint:  install a C compiler, or name one in CC")


if __name__ == "__main__":
    main()
