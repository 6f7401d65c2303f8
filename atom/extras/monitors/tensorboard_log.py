"""Rounds as TensorBoard shows them, by TensorBoard's own writer."""

import os
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

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


class TensorBoardLog:
    """An event sink. Raises: whatever the library does, also OSError for a folder that takes no
    more; then it is of no more use."""

    def __init__(self, open_writer: Callable[[], Any]) -> None:
        """`open_writer` is called for the first round (a start that comes to nothing leaves no
        file), and whenever a better branch takes rounds back: a curve cannot go back."""
        self._open = open_writer
        self._writer: Any = None
        self._last_round = -1

    @classmethod
    def in_folder(cls, folder: Path) -> "TensorBoardLog":
        """In a folder of its own for this process, and for each branch that took rounds back. The
        library and the folder are looked at now.

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
        own, branches = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}", count()

        def open_writer() -> Any:
            branch = next(branches)
            return Writer(str(folder / (f"{own}-branch-{branch}" if branch else own)))

        return cls(open_writer)

    def emit(self, kind: str, **fields: Any) -> None:
        if kind != "round":
            return
        if fields["round"] <= self._last_round:
            self.close()
            self._writer = None
        self._last_round = fields["round"]
        self._writer = self._writer or self._open()
        for key, tag in _SCALARS.items():
            if fields.get(key) is not None:
                self._writer.add_scalar(tag, float(fields[key]), fields["round"])
        self._writer.add_scalar("swarm/peers", float(len(fields["members"])), fields["round"])
        self._writer.flush()

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()
