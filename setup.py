"""Compiles the host kernels into the package; everything else is in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = "atom/swap/host_kernels.c"
BUILD = runpy.run_path(str(Path(__file__).parent / "atom" / "swap" / "build_kernels.py"))


class BuildKernels(build_ext):
    """A library without Python in it: one file for every version, loaded with ctypes."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, extension: Extension) -> None:
        library = Path(self.get_ext_fullpath(extension.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        BUILD["compile_kernels"](library)


setup(
    ext_modules=[Extension("atom.swap.libhostkernels", [SOURCE])],
    cmdclass={"build_ext": BuildKernels},
)
