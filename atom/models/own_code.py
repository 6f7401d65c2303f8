"""A run's own code: one source file that names a factory. Reading it is safe, loading it runs it.

The founder's file is found as Python would import it; everybody else gets its bytes. Both load it
in the same way, from the bytes that were hashed, so no other file can slip in between.
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
"""Longer files are refused: they travel to every peer."""


@dataclass(frozen=True)
class OwnCode:
    """`package.module:factory`, and the bytes of the file that defines it."""

    entry: str
    content: bytes
    path: Path
    """Where the bytes are, for people and for tracebacks."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def find_code(entry: str, folder: Path) -> OwnCode:
    """The founder's file, with `folder` first on the path. Imports the packages around it.

    Raises: SourceError.
    """
    name = entry.partition(":")[0]
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    hint = f"it is looked for in {folder} and among the installed packages"
    try:
        spec = importlib.util.find_spec(name)
    # Packages around the module run as they are imported: whatever they raise is theirs.
    except (Exception, SystemExit) as error:
        raise SourceError(f"module {name} cannot be imported: {_said(error)}", hint) from error
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise SourceError(f"module {name} cannot be imported: there is no such Python file", hint)
    return read_code(entry, Path(spec.origin))


def read_code(entry: str, path: Path) -> OwnCode:
    """Raises: SourceError for a file that is missing or too long."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CODE_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", "check its rights") from error
    if len(content) > MAX_CODE_BYTES:
        raise SourceError(
            f"{path} is longer than {MAX_CODE_BYTES // 1024} KiB",
            "joiners are sent this one file: move what is general into an installed package",
        )
    return OwnCode(entry, content, path)


def load_factory(code: OwnCode) -> Callable[[], Any]:
    """Runs the code and returns its factory. Only for code that may run here.

    Raises: SourceError naming the place where it failed.
    """
    name, _, attribute = code.entry.partition(":")
    module = types.ModuleType(f"atom_own_code_{code.sha256[:12]}")
    module.__file__ = str(code.path)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[module.__name__] = module  # dataclasses look their module up
    lines = code.content.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[str(code.path)] = (len(code.content), None, lines, str(code.path))
    try:
        exec(compile(code.content, str(code.path), "exec"), module.__dict__)
    # It is somebody's code: whatever it raises is to be told with its place.
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise SourceError(
            f"module {name} cannot be imported: {_said(error)}{place_in(code.path, error)}",
            "peers have this one file and their installed packages, not the files beside it",
        ) from error
    factory = getattr(module, attribute, None)
    if factory is None:
        raise SourceError(f"{code.path} defines no {attribute}", f"write def {attribute}(): in it")
    if not callable(factory):
        kind = type(factory).__name__
        raise SourceError(
            f"{code.entry} is {kind}, not callable",
            f"write def {attribute}(): …, without arguments",
        )
    found: Callable[[], Any] = factory
    return found


def place_in(path: Path, error: BaseException) -> str:
    """ " at file:line (the line)" of the deepest frame in `path`, or an empty string."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.lineno:
        return f" at {path}:{error.lineno}"
    return f" at {path}:{own[-1].lineno} ({own[-1].line})" if own else ""


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
