"""Who else hears of a daemon's events than its log: the lease, Prometheus, TensorBoard."""

from contextlib import ExitStack
from pathlib import Path

from atom.base.events import EventSink
from atom.config.peer_file import PeerFile
from atom.daemon.console import Console
from atom.daemon.monitors.ended_attempts import EndedAttempts
from atom.daemon.monitors.given_up import GivenUp
from atom.daemon.monitors.metrics import Info, Metrics
from atom.daemon.monitors.tensorboard_log import TensorBoardLog


class Monitors:
    """Those that the peer file asks for. What they hold is freed with the stack."""

    def __init__(self, peer: PeerFile, stack: ExitStack, console: Console) -> None:
        """Takes the port of metrics, if they are wanted: before anything is made that may take
        hours. Raises: ConfigError, StorageError, PortInUseError, AddressError."""
        self.ended_attempts = EndedAttempts()
        self._stack, self._console = stack, console
        self._metrics: Metrics | None = None
        self._url = ""
        self.sinks: list[EventSink] = [self.ended_attempts]
        if peer.metrics.port is not None:
            self._metrics = Metrics()
            self._url = self._serve(self._metrics, peer.metrics.host, peer.metrics.port)
            self.sinks.append(GivenUp(self._metrics, "the metrics that count events", console.note))
        if peer.log.tensorboard is not None:
            board = TensorBoardLog.in_folder(Path(peer.log.tensorboard))
            told = GivenUp(board, "TensorBoard", console.note)
            stack.callback(told.attempt, board.close)
            self.sinks.append(told)

    def begin(self, info: Info) -> None:
        """There is a daemon now: metrics tell of it, if they are wanted, until the stack ends."""
        if self._metrics is not None:
            self._stack.callback(self._metrics.show(info))
            self._console.note(f"metrics: {self._url}")

    def _serve(self, metrics: Metrics, host: str, port: int) -> str:
        number, close = metrics.serve(host, port)
        self._stack.callback(close)
        return f"http://{f'[{host}]' if ':' in host else host}:{number}/metrics"
