"""Who else hears of a daemon's events than its log: Prometheus, TensorBoard."""

import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from atom.base.errors import ConfigError, StorageError
from atom.base.events import EventSink
from atom.config.peer_file import PeerFile
from atom.daemon.console import Console
from atom.daemon.extensions import Info, Monitors
from atom.extras.monitors.metrics import Metrics
from atom.models.installing import install_extra


def open_monitors(peer: PeerFile, stack: ExitStack, console: Console) -> Monitors:
    """Those that the peer file asks for. What they hold is freed with the stack. Takes the port of
    metrics, if they are wanted: before anything is made that may take hours. Raises: ConfigError,
    StorageError, PortInUseError, AddressError."""
    sinks, metrics, url = list[EventSink](), Metrics(), ""
    if peer.metrics.port is not None:
        host = peer.metrics.host
        server = metrics.serve(host, peer.metrics.port)
        stack.callback(server.close)
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
        sinks.append(GivenUp(metrics, "the metrics that count events", console.note))
    if peer.log.tensorboard is not None:
        board = TensorBoardLog(Path(peer.log.tensorboard))
        told = GivenUp(board, "TensorBoard", console.note)
        stack.callback(told.attempt, board.close)
        sinks.append(told)

    def begin(info: Info) -> None:
        if url:
            stack.callback(metrics.show(info))
            console.note(f"metrics: {url}")

    return sinks, begin


class GivenUp:
    """An event sink that tells `sink`, until that fails: monitors tell of the training, and never
    end it. Thread-safe if `sink` is."""

    def __init__(self, sink: EventSink, name: str, note: Callable[[str], None]) -> None:
        """`note` hears, once, that nothing more comes for `name`."""
        self._sink, self._name, self._note = sink, name, note
        self._lock = threading.Lock()
        self._has_failed = False

    def emit(self, kind: str, **fields: Any) -> None:
        self.attempt(lambda: self._sink.emit(kind, **fields))

    def attempt(self, act: Callable[[], object]) -> None:
        """Something else that is done with the sink, such as its end."""
        if self._has_failed:
            return
        try:
            act()
        except Exception as problem:  # noqa: BLE001 - a library's faults are not the training's
            with self._lock:
                is_first, self._has_failed = not self._has_failed, True
            if is_first:
                what = getattr(problem, "strerror", None) or problem
                self._note(f"nothing more for {self._name} until the next start: {what}")


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

    def __init__(self, folder: Path) -> None:
        """In a folder of its own for this process, made with the first round: a start that comes to
        nothing leaves none. The library and `folder` are looked at now.

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
        own = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self._open: Callable[[], Any] = lambda: Writer(str(own))
        self._writer: Any = None

    def emit(self, kind: str, **fields: Any) -> None:
        if kind != "round":
            return
        self._writer = self._writer or self._open()
        for key, tag in _SCALARS.items():
            if fields.get(key) is not None:
                self._writer.add_scalar(tag, float(fields[key]), fields["round"])
        for name, figures in fields.get("validation", {"texts": {}})["texts"].items():
            self._writer.add_scalar(f"loss/validation/{name}", figures["loss"], fields["round"])
        self._writer.add_scalar("swarm/peers", float(len(fields["members"])), fields["round"])
        self._writer.flush()

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._writer.close()
