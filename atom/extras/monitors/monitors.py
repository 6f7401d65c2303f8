"""Who else hears of a daemon's events than its log: Prometheus, and trackers of experiments."""

from contextlib import ExitStack
from pathlib import Path

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
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        url = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
        sinks.append(metrics)
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
