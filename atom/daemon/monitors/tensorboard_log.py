"""Rounds as TensorBoard shows them, by TensorBoard's own writer."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

from atom.base.errors import ConfigError, StorageError
from atom.models.installing import install_extra

_SCALARS = {
    "loss": "loss/training",
    "validation_loss": "loss/validation",
    "tokens_per_s": "swarm/tokens_per_s",
    "sequences": "swarm/sequences",
    "gradient_norm": "gradient_norm",
    "reduce_seconds": "all_reduce_seconds",
}
"""Key of a `round` event → tag."""


class _Writer(Protocol):
    def add_scalar(self, tag: str, data: float, step: int) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class TensorBoardLog:
    """An event sink. Raises: whatever the library does, also OSError for a folder that takes no
    more; then it is of no more use."""

    def __init__(self, open_writer: Callable[[], _Writer]) -> None:
        """`open_writer` is called for the first round (a start that comes to nothing leaves no
        file), and whenever a better branch takes rounds back: a curve cannot go back."""
        self._open = open_writer
        self._writer: _Writer | None = None
        self._last_round = -1

    @classmethod
    def in_folder(cls, folder: Path) -> "TensorBoardLog":
        """A file of its own for this process, in a folder of its own for this start, and for each
        branch that took rounds back. The library and the folder are looked at now.

        Raises: ConfigError without the library; StorageError if the folder cannot be written.
        """
        try:
            from tensorboard.summary import Writer
        except ImportError as problem:
            raise ConfigError(
                "log.tensorboard: the tensorboard library is not installed",
                f"`{install_extra('tensorboard')}`; or leave the key out",
            ) from problem
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as problem:
            raise StorageError(
                f"cannot write {folder}: {problem.strerror}", "name another: [log] tensorboard"
            ) from problem
        _keep_its_threads_quiet()
        made = _made(folder, time.strftime("%Y%m%d-%H%M%S"))
        return cls(lambda: Writer(str(next(made))))

    def emit(self, kind: str, **fields: Any) -> None:
        if kind != "round":
            return
        if fields["round"] <= self._last_round:
            self.close()
            self._writer = None
        self._last_round = fields["round"]
        self._writer = self._writer or self._open()
        self._write(self._writer, fields)

    def _write(self, writer: _Writer, fields: Mapping[str, Any]) -> None:
        for key, tag in _SCALARS.items():
            if fields.get(key) is not None:
                writer.add_scalar(tag, float(fields[key]), fields["round"])
        writer.add_scalar("swarm/peers", float(len(fields["members"])), fields["round"])
        writer.flush()

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()


def _keep_its_threads_quiet() -> None:
    """From now on: they hand us what they fail with, and raise it as well, for nobody to hear."""
    before = threading.excepthook

    def heard(failed: threading.ExceptHookArgs) -> None:
        if not type(failed.thread).__module__.startswith("tensorboard."):
            before(failed)

    threading.excepthook = heard


def _made(folder: Path, started: str) -> Iterator[Path]:
    """Folders that were not there, each made when it is asked for: daemons may start in the same
    second, and a clock that goes back to winter time shows one twice. Raises: OSError."""
    names = chain([started], (f"{started}-{number}" for number in count(2)))
    own = next(folder / name for name in names if _is_made(folder / name))
    yield own
    for number in count(1):
        branch = own.with_name(f"{own.name}-branch-{number}")
        if _is_made(branch):
            yield branch


def _is_made(folder: Path) -> bool:
    """Just now, by us. Raises: OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True
