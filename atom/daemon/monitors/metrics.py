"""What a Prometheus server scrapes: counted events, and at each scrape what `atom info` knows.

Names follow Prometheus' rules: base units in the name, `_total` on counters. Labels have few
values, whatever strangers send: states, named reasons, our own names of events.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    make_wsgi_app,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from atom import __version__
from atom.base.errors import AddressError, PortInUseError
from atom.base.reasons import Reason
from atom.daemon.monitors.scrape_server import ScrapeServer
from atom.daemon.turns.rules import STANDINGS
from atom.daemon.turns.taking import own_row
from atom.swarm.records.lease import PeerState

Info = Callable[[], Mapping[str, Any]]
_REASONS = frozenset(reason.value for reason in Reason)
_REDUCE_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 100, 300)

_GAUGES = (
    ("round", "atom_round", "Last round applied here."),
    ("global_batch", "atom_global_batch_sequences", "Sequences per round, over all peers."),
    ("mini_batches", "atom_counted_sequences", "Sequences counted here for the next round."),
    ("loss", "atom_loss_nats", "Mean loss of the last committed round; of text, nats per token."),
    ("tokens_per_s", "atom_tokens_per_second", "This peer's speed over the last 30 s."),
)
_LAST_ROUND = (
    ("utilisation", "atom_utilisation_ratio", "Of the last round's time: in passes."),
    ("sent_bytes", "atom_round_sent_bytes", "To other peers, over the last round."),
    ("received_bytes", "atom_round_received_bytes", "From other peers, over the last round."),
)
_COUNTERS = (
    ("rounds_joined", "atom_rounds_joined", "Committed rounds that this process had a part in."),
    ("sequences_committed", "atom_committed_sequences", "Sequences of this process in them."),
)


class Metrics:
    """An event sink, and what its events come to. Thread-safe."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._events = Counter(
            "atom_events",
            "Events as in events.jsonl, by their named reason if they have one.",
            ["event", "reason"],
            registry=self.registry,
        )
        self._swarm_speed = Gauge(
            "atom_swarm_tokens_per_second",
            "The swarm's speed over the last round.",
            registry=self.registry,
        )
        self._reduce = Histogram(
            "atom_all_reduce_duration_seconds",
            "How long all-reduces took that this peer had a part in.",
            buckets=_REDUCE_BUCKETS_S,
            registry=self.registry,
        )

    def emit(self, kind: str, **fields: Any) -> None:
        reason = fields.get("reason")
        self._events.labels(kind, reason if reason in _REASONS else "").inc()
        if kind == "round":
            self._swarm_speed.set(fields["tokens_per_s"])
            if fields["reduce_seconds"]:
                self._reduce.observe(fields["reduce_seconds"])

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Answers scrapes from now on. The port, and what ends it.

        Raises: PortInUseError; AddressError for an address or port this process cannot have.
        """
        try:
            server = ScrapeServer(host, port, make_wsgi_app(self.registry))
        except OSError as problem:
            what = f"metrics cannot be served on {host} port {port}: "
            if problem.errno == errno.EADDRINUSE:
                hint = "choose another, or 0 for any free one: [metrics] port in a peer file"
                raise PortInUseError(f"{what}another program listens there", hint) from None
            raise AddressError(
                what + (problem.strerror or str(problem)),
                "use an address of this machine and a port above 1023: [metrics] host and port in"
                " a peer file",
            ) from None

        return server.server_port, server.close

    def show(self, info: Info) -> Callable[[], None]:
        """Adds what the daemon knows to every scrape, until what is returned is called.

        `info`: what `atom info` shows; called from the server's threads.
        """
        collector = _InfoCollector(info)
        self.registry.register(collector)
        return lambda: self.registry.unregister(collector)


class _InfoCollector(Collector):
    """At each scrape: what the daemon knows then."""

    def __init__(self, info: Info) -> None:
        self._info = info
        self._highest: dict[str, float] = {}

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not ask a daemon that is only being made."""
        return ()

    def collect(self) -> Iterator[Metric]:
        info = self._info()
        what = GaugeMetricFamily("atom_info", "What this is.", labels=["version", "run", "peer_id"])
        what.add_metric([__version__, str(info["run"]), str(info["peer_id"])], 1.0)
        yield what
        states = {state.value: float(state.value == info["state"]) for state in PeerState}
        yield _by("state", "atom_state", "1 for the state that this peer is in.", states)
        for key, name, meaning in _GAUGES:
            if info[key] is not None:
                yield GaugeMetricFamily(name, meaning, info[key])
        for key, name, meaning in _LAST_ROUND if info["last_round"] else ():
            yield GaugeMetricFamily(name, meaning, info["last_round"][key])
        for key, name, meaning in _COUNTERS:
            # A better branch takes rounds back, and a fall would be read as a new beginning.
            self._highest[key] = max(info[key], self._highest.get(key, 0.0))
            yield CounterMetricFamily(name, meaning, self._highest[key])
        yield GaugeMetricFamily("atom_peers", "Other peers seen alive.", len(info["peers"]))
        free = info["disk"]["free_bytes"]
        yield GaugeMetricFamily("atom_disk_free_bytes", "Free where the state is kept.", free)
        voided = CounterMetricFamily(
            "atom_passes_voided", "Passes that counted for nothing.", labels=["reason"]
        )
        for reason, count in info["passes_voided"].items():
            voided.add_metric([str(reason)], count)
        yield voided
        yield from _last_pass(info["last_pass"])
        yield from _turns(info)


def _last_pass(figures: Mapping[str, Any] | None) -> Iterator[Metric]:
    """Of one pass of the last 30 s; nothing before the first."""
    if figures is None:
        return
    yield GaugeMetricFamily(
        "atom_pass_duration_seconds", "How long a pass took.", figures["pass_seconds"]
    )
    yield GaugeMetricFamily(
        "atom_device_computing_ratio", "Of that pass: the device computes.", figures["computing"]
    )
    waits = {str(reason): float(share) for reason, share in figures["waiting"].items()}
    yield _by("reason", "atom_device_waiting_ratio", "Of that pass: the device waits.", waits)


def _turns(info: Mapping[str, Any]) -> Iterator[Metric]:
    """Our own: the other daemons of the device are asked themselves."""
    own = own_row(info)
    if own is None:
        return
    runs = {row["run"] + "/" + row["owner"] for row in info["device_turns"]["runs"]}
    yield GaugeMetricFamily("atom_device_runs", "That take turns on our device.", len(runs))
    turns = {turn: float(turn == own["turn"]) for turn in STANDINGS}
    yield _by("turn", "atom_device_turn", "1 for what we have of the device now.", turns)


def _by(label: str, name: str, meaning: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for which, value in values.items():
        family.add_metric([which], value)
    return family
