"""Metrics for a Prometheus server: counts of events, and the figures of `atom info` at each scrape.

Names follow Prometheus' rules: base units in the name, `_total` on counters. Labels take few
values, whatever strangers send: states, named reasons, Atom's own names of events.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from atom.base import __version__
from atom.base.errors import Reason
from atom.base.events import EventSink
from atom.config.peer_file import PeerFile
from atom.daemon.console import Console
from atom.swarm.addresses import listening
from atom.swarm.dial_rules import answers_to
from atom.swarm.records.lease import PeerState

Info = Callable[[], Mapping[str, Any]]
"""Function that returns the figures of `atom info`."""
SILENCE_S = 2.0
"""Seconds after which a silent connection is closed; a scrape takes milliseconds."""
_REASONS = frozenset(reason.value for reason in Reason)
_REDUCE_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 100, 300)


@dataclass(frozen=True)
class _Figure:
    """One metric, and where its value comes from."""

    name: str
    meaning: str
    """Help text of the metric."""
    of: Callable[[Mapping[str, Any]], float | Mapping[str, float] | None]
    """Function from the figures of `atom info` to a value, or to values by label; None: unknown."""
    label: str = ""
    """Name of the label; empty: the metric has none."""
    only_rises: bool = False
    """True for a counter, False for a gauge."""


def _at(*keys: str) -> Callable[[Mapping[str, Any]], Any]:
    def of(info: Any) -> Any:
        for key in keys:
            info = None if info is None else info[key]
        return info

    return of


def _validation(info: Mapping[str, Any]) -> Mapping[str, float] | None:
    if (losses := info["validation"]) is None:
        return None
    return {"": losses["loss"], **{text: each["loss"] for text, each in losses["texts"].items()}}


_FIGURES = (
    _Figure("atom_round", "Last round that this peer applied.", _at("round")),
    _Figure("atom_state", "1 for the current state of this peer.",
            lambda info: {each.value: float(each == info["state"]) for each in PeerState}, "state"),
    _Figure("atom_global_batch_sequences", "Sequences per round, over all peers.",
            _at("global_batch")),
    _Figure("atom_counted_sequences", "Sequences that this peer counted for the next round.",
            _at("sequences")),
    _Figure("atom_loss_nats", "Mean loss of the last committed round; for text, nats per token.",
            _at("loss")),
    _Figure("atom_validation_loss_nats", "Newest validation loss by text; without a label: of all.",
            _validation, "text"),
    _Figure("atom_text_epochs", "Epochs of each training text.", _at("epochs"), "text"),
    _Figure("atom_tokens_per_second", "Speed of this peer in the last 30 s.", _at("tokens_per_s")),
    _Figure("atom_utilisation_ratio", "Fraction of the last round's time spent in passes.",
            _at("last_round", "utilisation")),
    _Figure("atom_sent_bytes", "Bytes sent to other peers by this process.", _at("sent_bytes"),
            only_rises=True),
    _Figure("atom_received_bytes", "Bytes received by this process from other peers.",
            _at("received_bytes"), only_rises=True),
    _Figure("atom_traffic_bytes", "Bytes in both directions, by all processes of this peer.",
            lambda info: {span: info["traffic"][f"{span}_bytes"] for span in ("today", "month")},
            "span"),
    _Figure("atom_traffic_allowed_bytes", "Bytes allowed per month: [network] per_month.",
            _at("traffic", "per_month_bytes")),
    _Figure("atom_committed_sequences", "Sequences of this process in committed rounds.",
            _at("sequences_committed"), only_rises=True),
    _Figure("atom_peers", "Other live peers.", lambda info: len(info["peers"])),
    _Figure("atom_disk_free_bytes", "Free space for the state.", _at("disk", "free_bytes")),
    _Figure("atom_passes_voided", "Passes whose results were discarded.", _at("passes_voided"),
            "reason", only_rises=True),
    _Figure("atom_pass_duration_seconds", "Duration of a pass.", _at("last_pass", "pass_seconds")),
    _Figure("atom_device_computing_ratio", "Fraction of a pass in which the device computes.",
            _at("last_pass", "computing")),
    _Figure("atom_device_waiting_ratio", "Fraction of a pass in which the device waits.",
            _at("last_pass", "waiting"), "reason"),
    _Figure("atom_device_at_work", "1 for a device of this peer, 0 while it is excluded.",
            lambda info: {name: float(not why) for name, why in info["devices"].items()}, "device"),
)  # fmt: skip


class Metrics(Collector):
    """An event sink that counts events, and the server of all metrics. Thread-safe."""

    def __init__(self) -> None:
        self.info: Info | None = None
        """Function with the daemon's figures, called in the server's threads; None: no daemon."""
        self._highest: dict[tuple[str, str], float] = {}
        """(name, label) of a counter → the highest value that was shown."""
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._events = Counter(
            "atom_events",
            "Events in events.jsonl, by kind and reason.",
            ["event", "reason"],
            registry=self.registry,
        )
        self._swarm_speed = Gauge(
            "atom_swarm_tokens_per_second",
            "Speed of the swarm over the last round.",
            registry=self.registry,
        )
        self._reduce = Histogram(
            "atom_all_reduce_duration_seconds",
            "Duration of all-reduces that this peer took part in.",
            buckets=_REDUCE_BUCKETS_S,
            registry=self.registry,
        )

    def emit(self, kind: str, **fields: Any) -> None:
        """Count an event; a round also sets the swarm's speed and the time of its all-reduce."""
        reason = fields.get("reason")
        self._events.labels(kind, reason if reason in _REASONS else "").inc()
        if kind == "round":
            self._swarm_speed.set(fields["tokens_per_s"])
            if fields["reduce_seconds"]:
                self._reduce.observe(fields["reduce_seconds"])

    def serve(self, host: str, port: int) -> WSGIServer:
        """Start to answer scrapes, in threads.

        Errors of a connection are ignored, such as a client that hangs up. Requests for another
        host name are refused (see `answers_to`).

        Raises:
            PortInUseError: Another program has the port.
            AddressError: This process cannot have that address or port.
        """
        # Opening the port here raises an error that names the keys of the peer file.
        listening(host, port, "[metrics] port and host in a peer file").close()
        server, _ = start_http_server(port, host, self.registry)
        changed: Any = server
        scrape = changed.get_app()

        def guarded(request: Any, start: Any) -> Any:
            if answers_to(host, request.get("HTTP_HOST", host)):
                return scrape(request, start)
            start("421 Misdirected Request", [])
            return []

        server.set_app(guarded)
        changed.RequestHandlerClass.timeout = SILENCE_S
        changed.handle_error = lambda request, client_address: None
        return server

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not ask a daemon that is still being built."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the daemon's current figures; figures that are unknown now are left out."""
        if (read := self.info) is None:
            return
        info = read()
        peer = {"version": __version__, "run": str(info["run"]), "peer_id": str(info["peer_id"])}
        yield InfoMetricFamily("atom", "Version and run of this peer.", peer)
        for figure in _FIGURES:
            value = figure.of(info)
            if value is not None:
                yield self._family(figure, value)

    def _family(self, figure: _Figure, value: float | Mapping[str, float]) -> Metric:
        kind = CounterMetricFamily if figure.only_rises else GaugeMetricFamily
        family = kind(figure.name, figure.meaning, labels=[figure.label] if figure.label else [])
        for label, number in (value if isinstance(value, Mapping) else {"": value}).items():
            if figure.only_rises:
                # A better branch can undo rounds. Prometheus would read a fall as a restart.
                number = max(number, self._highest.get((figure.name, label), 0.0))
                self._highest[figure.name, label] = number
            family.add_metric([label] if figure.label else [], float(number))
        return family


def open_metrics(
    peer: PeerFile, stack: ExitStack, console: Console
) -> tuple[Sequence[EventSink], Callable[[Info], None]]:
    """Take the port of metrics if the peer file asks for them, before any step that takes hours.

    Args:
        peer: Peer file.
        stack: Exit stack that frees the port when it closes.
        console: Console that shows the URL.

    Returns:
        The event sinks of the daemon, and a call that serves its figures from then on.

    Raises:
        PortInUseError: Another program has the port.
        AddressError: This process cannot have that address or port.
    """
    host, port, metrics = peer.metrics.host, peer.metrics.port, Metrics()
    if port is None:
        return (), lambda info: None
    server = metrics.serve(host, port)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)

    def begin(info: Info) -> None:
        metrics.info = info
        stack.callback(setattr, metrics, "info", None)
        name = f"[{host}]" if ":" in host else host
        console.note(f"metrics: http://{name}:{server.server_port}/metrics")

    return [metrics], begin
