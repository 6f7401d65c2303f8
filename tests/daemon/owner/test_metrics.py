"""Metrics that Prometheus scrapes, and the queries of the dashboard for Grafana."""

import json
import re
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from atom.config.load import parse_peer_text
from atom.daemon.owner.metrics import Metrics, open_metrics
from tests.daemon.owner.metrics_samples import INFO, ROUND, a_whole_scrape, scraped
from tests.daemon.silence import Notes

ROOT = Path(__file__).parents[3]
SCRAPE = a_whole_scrape()
OURS = {
    sample.name
    for family in text_string_to_metric_families(SCRAPE)
    for sample in family.samples
    if sample.name.startswith("atom_") and not sample.name.endswith("_created")
}


def value(text: str, name: str, **labels: str) -> list[float]:
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]


def test_a_scrape_has_what_the_daemon_knows_and_what_happened() -> None:
    assert value(SCRAPE, "atom_round") == [7]
    assert value(SCRAPE, "atom_state", state="accumulating") == [1]
    assert value(SCRAPE, "atom_state", state="paused") == [0]
    assert value(SCRAPE, "atom_committed_sequences_total") == [320]
    assert value(SCRAPE, "atom_passes_voided_total", reason="loss-not-finite") == [2]
    assert value(SCRAPE, "atom_device_waiting_ratio", reason="link") == [0.25]
    assert value(SCRAPE, "atom_device_at_work", device="cuda:0") == [1]
    assert value(SCRAPE, "atom_device_at_work", device="cuda:1") == [0]
    assert value(SCRAPE, "atom_swarm_tokens_per_second") == [3000]
    assert value(SCRAPE, "atom_utilisation_ratio") == [0.875]
    assert value(SCRAPE, "atom_sent_bytes_total") == [8192]
    assert value(SCRAPE, "atom_all_reduce_duration_seconds_sum") == [0.25]
    events = "atom_events_total"
    assert value(SCRAPE, events, event="attempt-ended", reason="ring-broken") == [1]
    assert value(SCRAPE, events, event="paused", reason="") == [1], "free text is no label"
    assert value(SCRAPE, "process_resident_memory_bytes")


def test_a_better_branch_that_takes_rounds_back_lets_no_counter_fall() -> None:
    metrics, info = Metrics(), dict(INFO)
    metrics.info = lambda: info
    counted = []
    for given in (320, 300, 330):
        info["sequences_committed"] = given
        text = generate_latest(metrics.registry).decode()
        counted += value(text, "atom_committed_sequences_total")
    assert counted == [320, 320, 330]


def test_what_is_not_known_yet_is_left_out() -> None:
    with scraped(INFO | {"loss": None, "last_pass": None, "last_round": None}) as (metrics, scrape):
        metrics.emit("round", **ROUND | {"reduce_seconds": 0.0})
        text = scrape()
    assert value(text, "atom_loss_nats") == []
    assert value(text, "atom_device_computing_ratio") == []
    assert value(text, "atom_utilisation_ratio") == []
    assert value(text, "atom_all_reduce_duration_seconds_count") == [0]


def test_every_metric_is_documented_and_no_other() -> None:
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    section = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(atom_\w+)`", section))
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in OURS}
    assert documented == plain


def test_dashboard_and_alerts_ask_for_metrics_that_exist() -> None:
    board = json.loads((ROOT / "docker" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"atom_\w+", query)}
    assert len(board["panels"]) >= 8
    assert asked <= OURS
    assert all('atom_info{run="$run"}' in query for query in queries)
    alerts = (ROOT / "docker" / "alerts.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\batom_\w+", alerts)) <= OURS


def test_nothing_listens_and_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    said = Notes()
    with ExitStack() as stack:
        sinks, begin = open_metrics(parse_peer_text("", tmp_path), stack, said)
        begin(lambda: INFO)
        assert not sinks
    assert said.notes == []
    assert list(tmp_path.iterdir()) == []


def test_metrics_are_served_when_the_peer_file_asks_for_them(tmp_path: Path) -> None:
    said, peer = Notes(), parse_peer_text("[metrics]\nport = 0\n", tmp_path)
    with ExitStack() as stack:
        sinks, begin = open_metrics(peer, stack, said)
        begin(lambda: INFO)
        for sink in sinks:
            sink.emit("left")
        (url,) = re.findall(r"^metrics: (http://127\.0\.0\.1:\d+/metrics)$", said.notes[0])
        with urlopen(url) as answer:
            text = answer.read().decode()
    assert value(text, "atom_round") == [7]
    assert value(text, "atom_events_total", event="left", reason="") == [1]
