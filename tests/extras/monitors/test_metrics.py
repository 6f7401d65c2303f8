"""What Prometheus scrapes, what Grafana asks of it, and what trackers of experiments are given."""

import errno
import json
import re
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from atom.base.errors import ConfigError, StorageError
from atom.config.load import parse_peer_text
from atom.extras.monitors.metrics import Metrics
from atom.extras.monitors.monitors import TRACKERS, WAITING, Tracker, open_monitors
from tests.daemon.silence import Silence
from tests.extras.monitors.metrics_samples import INFO, ROUND, a_whole_scrape, scraped

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
    assert value(SCRAPE, "atom_round_sent_bytes") == [4096]
    assert value(SCRAPE, "atom_all_reduce_duration_seconds_sum") == [0.25]
    events = "atom_events_total"
    assert value(SCRAPE, events, event="attempt-ended", reason="ring-broken") == [1]
    assert value(SCRAPE, events, event="paused", reason="") == [1], "free text is no label"
    assert value(SCRAPE, "process_resident_memory_bytes")


def test_a_better_branch_that_takes_rounds_back_lets_no_counter_fall() -> None:
    metrics, info = Metrics(), dict(INFO)
    metrics.show(lambda: info)
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


def test_the_dashboard_for_grafana_asks_for_metrics_that_exist() -> None:
    board = json.loads((ROOT / "docker" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"atom_\w+", query)}
    assert len(board["panels"]) >= 8
    assert asked <= OURS
    assert all('atom_info{run="$run"}' in query for query in queries)


class Said(Silence):
    """A console."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_nothing_listens_and_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    said = Said()
    with ExitStack() as stack:
        sinks, begin = open_monitors(parse_peer_text("", tmp_path), stack, said)
        begin(lambda: INFO)
        assert sinks == []
    assert said.notes == []
    assert list(tmp_path.iterdir()) == []


def test_the_peer_file_asks_for_both(tmp_path: Path) -> None:
    text = '[metrics]\nport = 0\n[log]\ntensorboard = "board"\n'
    said = Said()
    with ExitStack() as stack:
        sinks, begin = open_monitors(parse_peer_text(text, tmp_path), stack, said)
        begin(lambda: INFO)
        for sink in sinks:
            sink.emit("left")
            sink.emit(
                "round", **ROUND, loss=2.5, sequences=64, gradient_norm=0.5, members=["a", "b"]
            )
            sink.emit(
                "round", **{**ROUND, "round": 8}, members=["a"], validation_loss=2.75,
                validation={"texts": {"books": {"loss": 2.5}, "web": {"loss": 3.0}}},
            )  # fmt: skip
    assert re.fullmatch(r"metrics: http://127\.0\.0\.1:\d+/metrics", said.notes[0])
    (folder,) = (tmp_path / "board").iterdir()
    board = EventAccumulator(str(folder)).Reload()
    scalars = {
        tag: [(each.step, *make_ndarray(each.tensor_proto).flat) for each in board.Tensors(tag)]
        for tag in board.Tags()["tensors"]
    }
    assert set(board.PluginTagToContent("scalars")) == set(scalars), "shown under Scalars"
    assert scalars["loss/training"] == [(7, 2.5)]
    assert scalars["swarm/peers"] == [(7, 2.0), (8, 1.0)]
    assert scalars["loss/validation"] == [(8, 2.75)]
    assert scalars["loss/validation/web"] == [(8, 3.0)]


def test_a_folder_that_takes_nothing_is_said_and_a_start_without_rounds_leaves_nothing(
    tmp_path: Path,
) -> None:
    tracker = Tracker("tensorboard", tmp_path / "board", print)
    tracker.close()
    tracker.begin(lambda: INFO)
    tracker.close()
    assert list((tmp_path / "board").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        Tracker("tensorboard", tmp_path / "file", print)


def test_a_library_that_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom.extras.monitors.monitors.find_spec", lambda name: None)
    for key in TRACKERS:
        peer = parse_peer_text(f'[log]\n{key} = "board"\n', tmp_path)
        with ExitStack() as stack, pytest.raises(ConfigError, match=f"the {key} library") as caught:
            open_monitors(peer, stack, Said())
        assert f"atom-swarm[{key}]" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


class Broken:
    """A writer that can do nothing, and says so at every call."""

    calls = 0

    def add_scalar(self, tag: str, data: float, step: int) -> None:
        self.calls += 1
        raise OSError(errno.ENOSPC, "no space")

    def close(self) -> None:
        raise RuntimeError("no space")


def test_a_tracker_that_fails_ends_itself_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, said = Broken(), Said()
    monkeypatch.setattr("tensorboard.summary.Writer", lambda folder: broken)
    with ExitStack() as stack:
        peer = parse_peer_text('[log]\ntensorboard = "board"\n', tmp_path)
        sinks, begin = open_monitors(peer, stack, said)
        begin(lambda: INFO)
        for _ in range(WAITING + 3):
            for sink in sinks:
                sink.emit("round", **ROUND, members=[])
    assert broken.calls == 1
    assert said.notes == ["nothing more for tensorboard until the next start: no space"]


def test_a_tracker_that_hangs_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets what it can take once it goes on; rounds beyond are dropped."""
    under_way, may_go_on, taken = threading.Event(), threading.Event(), list[int]()

    def log(round_number: int, told: object) -> None:
        under_way.set()
        assert may_go_on.wait(20)
        taken.append(round_number)

    monkeypatch.setitem(TRACKERS, "tensorboard", lambda folder, info: (log, lambda: None))
    said = Said()
    tracker = Tracker("tensorboard", tmp_path, said.note)
    tracker.begin(lambda: INFO)
    tracker.emit("round", **{**ROUND, "round": 1}, members=[])
    assert under_way.wait(20)
    for number in range(2, WAITING + 100):
        tracker.emit("round", **{**ROUND, "round": number}, members=[])
    monkeypatch.setattr("atom.extras.monitors.monitors.CLOSE_S", 0.01)
    tracker.close()
    assert taken == []
    assert said.notes == ["tensorboard is slow: its last rounds are not written"]
    may_go_on.set()
    monkeypatch.undo()
    tracker.close()
    assert taken == list(range(1, WAITING + 2))
