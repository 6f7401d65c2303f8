"""Who else hears of a daemon's events than its log: the lease, Prometheus, TensorBoard."""

from contextlib import ExitStack
from pathlib import Path

from atom.base.events import EventSink
from atom.config.peer_file import PeerFile
from atom.daemon.console import Console
from atom.daemon.monitors.ended_attempts import EndedAttempts
from atom.daemon.monitors.metrics import Info, Metrics
from atom.daemon.monitors.tensorboard_log import TensorBoardLog


class Monitors:
    """Those that the peer file asks for. What they hold is freed with the stack."""

    def __init__(self, peer: PeerFile, stack: ExitStack) -> None:
        """Raises: ConfigError, StorageError."""
        self.ended_attempts = EndedAttempts()
        self._stack = stack
        self._where = peer.metrics
        self._metrics: Metrics | None = None
        self.sinks: list[EventSink] = [self.ended_attempts]
        if peer.metrics.port is not None:
            self._metrics = Metrics()
            self.sinks.append(self._metrics)
        if peer.log.tensorboard is not None:
            board = TensorBoardLog.in_folder(Path(peer.log.tensorboard))
            stack.callback(board.close)
            self.sinks.append(board)

    def begin(self, info: Info, console: Console) -> None:
        """Serves metrics, if they are wanted, until the stack ends. Raises: PortInUseError."""
        if self._metrics is None or self._where.port is None:
            return
        port, close = self._metrics.serve(self._where.host, self._where.port, info)
        self._stack.callback(close)
        console.note(f"metrics: http://{self._where.host}:{port}/metrics")
