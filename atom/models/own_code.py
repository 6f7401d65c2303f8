"""Code of a run: one source file with a factory. Reading the file is safe; loading it executes it.

The founder's file is found as Python would import it; all other peers receive its bytes. Both load
it in the same way, from the bytes that were hashed, so no other file can be executed instead.
"""

import hashlib
import importlib
import importlib.util
import linecache
import sys
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.models.source import SourceError

MAX_CODE_BYTES = 64 * 1024
"""Maximum size of a source file, because it is sent to every peer."""


@dataclass(frozen=True)
class OwnCode:
    """Name of a factory, and the source file that defines it."""

    entry: str
    """Name of the factory: "package.module:factory"."""
    content: bytes
    """Bytes of the source file."""
    path: Path
    """Path of the file, for messages and tracebacks only."""

    @property
    def sha256(self) -> str:
        """Hex digest of the content."""
        return hashlib.sha256(self.content).hexdigest()


def find_code(entry: str, folder: Path) -> OwnCode:
    """Find and read the founder's source file, with `folder` first on Python's path.

    Packages that contain the module are imported, and so executed.

    Args:
        entry: name of the factory, "package.module:factory".
        folder: folder to search before the installed packages.

    Raises: SourceError if there is no such file, a package fails, or the file is too long.
    """
    name = entry.partition(":")[0]
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    hint = f"it is looked for in {folder} and among the installed packages"
    try:
        spec = importlib.util.find_spec(name)
    # The packages that contain the module are executed, and may raise anything.
    except (Exception, SystemExit) as error:
        raise SourceError(
            f"module {name} cannot be imported: {_first_line(error)}", hint
        ) from error
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise SourceError(f"module {name} cannot be imported: there is no such Python file", hint)
    return read_code(entry, Path(spec.origin))


def read_code(entry: str, path: Path) -> OwnCode:
    """Read a source file without executing it.

    Raises: SourceError if the file cannot be read or is too long.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CODE_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "check its rights") from error
    if len(content) > MAX_CODE_BYTES:
        raise SourceError(
            f"{path} is longer than {MAX_CODE_BYTES // 1024} KiB",
            "joiners receive only this file: move general code into an installed package",
        )
    return OwnCode(entry, content, path)


def load_factory(code: OwnCode) -> Callable[[], Any]:
    """Execute the code and return its factory; the caller must have checked that it is trusted.

    Raises: SourceError naming the line that failed, or if the factory is missing or not callable.
    """
    name, _, attribute = code.entry.partition(":")
    module = types.ModuleType(f"atom_own_code_{code.sha256[:12]}")
    module.__file__ = str(code.path)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    lines = code.content.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[str(code.path)] = (len(code.content), None, lines, str(code.path))
    try:
        exec(compile(code.content, str(code.path), "exec"), module.__dict__)
    # User code may raise anything; the error is reported with its line.
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise SourceError(
            f"module {name} cannot be imported: {_first_line(error)}{place_in(code.path, error)}",
            "import only installed packages: other peers receive this file alone",
        ) from error
    factory = getattr(module, attribute, None)
    if factory is None:
        raise SourceError(f"{code.path} defines no {attribute}", f"add def {attribute}(): … to it")
    if not callable(factory):
        kind = type(factory).__name__
        raise SourceError(
            f"{code.entry} is {kind}, not callable",
            f"write def {attribute}(): …, without arguments",
        )
    found: Callable[[], Any] = factory
    return found


def place_in(path: Path, error: BaseException) -> str:
    """Return " at FILE:LINE (source line)" of the error's deepest frame in `path`, else ""."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.lineno:
        return f" at {path}:{error.lineno}"
    return f" at {path}:{own[-1].lineno} ({own[-1].line})" if own else ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
