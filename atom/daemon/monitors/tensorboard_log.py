"""Rounds as TensorBoard shows them, by TensorBoard's own writer."""

import time
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
    """An event sink; a folder that takes no more ends it, not the training."""

    def __init__(self, writer: _Writer) -> None:
        self._writer: _Writer | None = writer

    @classmethod
    def in_folder(cls, folder: Path) -> "TensorBoardLog":
        """A file of its own for this process, in a folder of its own for this start.

        Raises: ConfigError without the library; StorageError if the folder cannot be written.
        """
        try:
            from tensorboard.summary import Writer
        except ImportError as problem:
            raise ConfigError(
                "log.tensorboard: the tensorboard library is not installed",
                f"{install_extra('tensorboard')}; or leave the key out",
            ) from problem
        try:
            return cls(Writer(str(folder / time.strftime("%Y%m%d-%H%M%S"))))
        except OSError as problem:
            raise StorageError(
                f"cannot write {folder}: {problem.strerror}", "name another: [log] tensorboard"
            ) from problem

    def emit(self, kind: str, **fields: Any) -> None:
        if kind != "round" or self._writer is None:
            return
        try:
            for key, tag in _SCALARS.items():
                if fields.get(key) is not None:
                    self._writer.add_scalar(tag, float(fields[key]), fields["round"])
            self._writer.add_scalar("swarm/peers", float(len(fields["members"])), fields["round"])
            self._writer.flush()
        except OSError:  # the library gives up at its first error, and repeats it at each call
            self._writer = None

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()
