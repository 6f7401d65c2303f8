"""A daemon that is scraped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

from atom.daemon.owner.metrics import Metrics

INFO: dict[str, Any] = {
    "run": 'quoted "run"\n',
    "peer_id": "12D3KooWann",
    "state": "accumulating",
    "round": 7,
    "global_batch": 64,
    "sequences": 12,
    "loss": 2.5,
    "validation": {"round": 6, "loss": 2.75, "texts": {"books": {"loss": 2.5}}},
    "epochs": {"books": 1.25, "web": 0.5},
    "tokens_per_s": 1000.0,
    "sequences_committed": 320,
    "sent_bytes": 8192,
    "traffic": {"today_bytes": 1000, "month_bytes": 3000, "per_month_bytes": 9000},
    "received_bytes": 16384,
    "peers": ["b", "c"],
    "disk": {"free_bytes": 10_000_000_000},
    "passes_voided": {"loss-not-finite": 2},
    "last_round": {"utilisation": 0.875},
    "last_pass": {"pass_seconds": 0.25, "computing": 0.75, "waiting": {"link": 0.25}},
    "state_directory": "/one",
    "devices": {"cuda:0": None, "cuda:1": "out of memory"},
}
ROUND = {"round": 7, "tokens_per_s": 3000.0, "reduce_seconds": 0.25}


@contextmanager
def scraped(info: dict[str, Any]) -> Iterator[tuple[Metrics, Callable[[], str]]]:
    """Metrics that are served, and what a scrape brings."""
    metrics = Metrics()
    metrics.info = lambda: info
    server = metrics.serve("127.0.0.1", 0)

    def scrape() -> str:
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=20) as answer:
            return str(answer.read().decode())

    try:
        yield metrics, scrape
    finally:
        server.shutdown()
        server.server_close()


def a_whole_scrape() -> str:
    """Return a scrape with every metric."""
    with scraped(INFO) as (metrics, scrape):
        metrics.emit("round", **ROUND)
        metrics.emit("attempt-ended", round=8, reason="ring-broken", stage="ring")
        metrics.emit("paused", reason="typed by a person")
        return scrape()
