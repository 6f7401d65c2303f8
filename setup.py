"""Compiles the kernels into the package; everything else is in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
BUILD = runpy.run_path(str(ROOT / "atom" / "base" / "build_kernels.py"))


class BuildKernels(build_ext):
    """Builder of libraries without Python code: one file for all versions, loaded with ctypes."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, extension: Extension) -> None:
        library = Path(self.get_ext_fullpath(extension.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        BUILD["compile_kernels"](ROOT / extension.sources[0], library)


class WheelOfKernels(bdist_wheel):
    """Wheel for one platform and every version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def _extension(source: Path) -> Extension:
    library = BUILD["library_of"](source).relative_to(ROOT).with_suffix("")
    shared = [BUILD["SHARED"], *source.parent.glob("*.h")]
    depends = [str(header.relative_to(ROOT)) for header in shared]
    return Extension(".".join(library.parts), [str(source.relative_to(ROOT))], depends=depends)


setup(
    ext_modules=[_extension(source) for source in BUILD["sources"]()],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": WheelOfKernels},
)
