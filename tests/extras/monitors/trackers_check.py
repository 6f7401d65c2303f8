"""What Weights & Biases and MLflow read of what they were given: by `make trackers`, with the
libraries themselves."""

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from atom.config.load import parse_peer_text
from atom.extras.monitors import trackers
from atom.extras.monitors.monitors import open_monitors
from tests.extras.monitors.metrics_samples import INFO, ROUND
from tests.extras.monitors.test_metrics import Said

TOLD = {"run": "tiny", "peer_id": "12D3KooWabcdef"}
# What these libraries use is older than what they run with.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
]


def track(patch: pytest.MonkeyPatch, folder: Path, key: str, rounds: range) -> None:
    """As a daemon that sees these rounds; the libraries' import is waited for."""
    patch.setattr(trackers, "CLOSE_S", 100.0)
    peer, said = parse_peer_text(f'[log]\n{key} = "board"\n', folder), Said()
    with ExitStack() as stack:
        sinks, begin = open_monitors(peer, stack, said)
        begin(lambda: {**INFO, **TOLD})
        for number in rounds:
            for sink in sinks:
                told = {**ROUND, "round": number, "loss": 9.0 - number, "sequences": 64}
                sink.emit("round", **told, members=["a", "b"])
    assert said.notes == []


def test_mlflow_has_the_rounds_of_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rounds in (range(1, 4), range(4, 6)):
        track(monkeypatch, tmp_path, "mlflow", rounds)
    database = sqlite3.connect(tmp_path / "board" / "mlflow.db")
    asked = "select step, value from metrics where key = 'loss/training' order by step"
    assert database.execute(asked).fetchall() == [(n, 9.0 - n) for n in range(1, 6)]
    names = database.execute("select name from experiments where name != 'Default'").fetchall()
    assert names == [("tiny",)]
    runs = database.execute("select name, status from runs").fetchall()
    assert runs == [("abcdef", "FINISHED")] * 2


def records(raw: bytes) -> Iterator[bytes]:
    """Of LevelDB's log format: after a header of 7 bytes each has a checksum, a length, and whether
    it is whole, as all are in a file that is shorter than a block."""
    assert len(raw) < 1 << 15
    at = 7
    while at < len(raw):
        _, length, kind = struct.unpack_from("<IHB", raw, at)
        assert kind == 1
        yield raw[at + 7 : at + 7 + length]
        at += 7 + length


def test_wandb_has_the_rounds_in_a_file_to_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    track(monkeypatch, tmp_path, "wandb", range(1, 4))
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (tmp_path / "board" / "wandb").glob("offline-run-*/run-*.wandb")
    history, names = [], []
    for raw in records(path.read_bytes()):
        record = Record()
        record.ParseFromString(raw)
        if record.HasField("run"):
            names.append((record.run.project, record.run.display_name))
        told = {
            each.key or "/".join(each.nested_key): each.value_json for each in record.history.item
        }
        if "round" in told:
            history.append((int(told["round"]), float(told["loss/training"])))
    assert names[0] == ("tiny", "abcdef")
    assert history == [(n, 9.0 - n) for n in range(1, 4)]
