"""Who else hears of a daemon's events than its log: Prometheus, and trackers of experiments."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from atom.base.events import EventSink
from atom.config.peer_file import PeerFile
from atom.daemon.console import Console
from atom.daemon.extensions import Info, Monitors
from atom.extras.monitors.metrics import Metrics
from atom.extras.monitors.trackers import Tracker


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
    trackers = [
        Tracker(key, Path(folder), console.note)
        for key, folder in peer.log.model_dump(exclude_none=True).items()
    ]
    for tracker in trackers:
        stack.callback(tracker.close)

    def begin(info: Info) -> None:
        if url:
            stack.callback(metrics.show(info))
            console.note(f"metrics: {url}")
        for tracker in trackers:
            tracker.begin(info)

    return [*sinks, *trackers], begin


class GivenUp:
    """An event sink that tells `sink`, until that fails: monitors tell of the training, and never
    end it. Thread-safe if `sink` is."""

    def __init__(self, sink: EventSink, name: str, note: Callable[[str], None]) -> None:
        """`note` hears, once, that nothing more comes for `name`."""
        self._sink, self._name, self._note = sink, name, note
        self._lock = threading.Lock()
        self._has_failed = False

    def emit(self, kind: str, **fields: Any) -> None:
        if self._has_failed:
            return
        try:
            self._sink.emit(kind, **fields)
        except Exception as problem:  # noqa: BLE001 - a library's faults are not the training's
            with self._lock:
                is_first, self._has_failed = not self._has_failed, True
            if is_first:
                what = getattr(problem, "strerror", None) or problem
                self._note(f"nothing more for {self._name} until the next start: {what}")
