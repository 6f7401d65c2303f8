"""An update rule that the code has never heard of: averaged, saved, joined, and reckoned with."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atom.config.load import parse_run_text
from atom.config.run_file import UPDATE_RULES, RunFile
from atom.daemon.fitting.device_choice import peer_bytes
from atom.daemon.model.run_optimizer import shared_state, update_rule
from atom.graph.ir import ParameterLayout
from atom.optim.adamw import AdamW
from atom.optim.rate import RateSettings
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from atom.training.storage.run_storage import write_snapshot
from tests.training.conftest import NewDevice
from tests.training.small_replica import (
    SEQUENCES,
    MicroBatch,
    apply,
    batches,
    contributed,
    filled,
    program,
    same,
)

RATE = 1e-2
PASSES = (2, 4)
"""Of the two peers, in each round: each takes a step of its own every two passes."""
RUN = """
run = { name = "averages" }
data = { source = "python-stdlib" }
batch = { global_sequences = 8, micro_batch_sequences = 1 }
model = { family = "gpt3", size = "small", vocabulary_size = 512 }
optimizer = { learning_rate = 1e-2 }
update = { rule = "weight-average" }
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that a contributor adds to `UPDATE_RULES`."""
    monkeypatch.setitem(UPDATE_RULES, "weight-average", "toy_weight_average:WeightAverage")


@pytest.fixture
def run(registered: None) -> RunFile:
    return parse_run_text(RUN)


def batch(round: int, peer: int, place: int) -> MicroBatch:
    return batches(1, round * 100 + peer * 10 + place)[0]


@pytest.fixture
def new_replica(run: RunFile, new_device: NewDevice) -> Callable[[], Replica]:
    settings = {
        "rate": RateSettings(RATE),
        "optimizer": AdamW(weight_decay=0.0),
        "update_rule": update_rule(run),
    }
    return lambda: filled(new_device(), program(), **settings)


def play_round(replicas: Sequence[Replica], round: int) -> Tensor:
    """Trains and averages; the round's result."""
    for peer, replica in enumerate(replicas):
        replica.reset_gradients()
        for place in range(PASSES[peer]):
            replica.run_pass([batch(round, peer, place)])
    sequences = sum(replica.sequences for replica in replicas)
    mean = sum(map(contributed, replicas), torch.zeros(replicas[0].elements)) / sequences
    for replica in replicas:
        apply(replica, mean, round)
    return mean


def test_a_round_is_the_mean_of_weights_that_peers_reached_alone(
    new_replica: Callable[[], Replica],
) -> None:
    moved, other = new_replica(), new_replica()
    for place in range(2):
        moved.run_pass([batch(1, 0, place)])
    ours, theirs = (each.export_parameters() for each in (moved, other))
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)
    assert same(moved, other), "what is shared waits for the round"
    for place in range(4):
        other.run_pass([batch(1, 1, place)])
    assert (moved.sequences, other.sequences) == (2 * SEQUENCES, 4 * SEQUENCES)
    ours, theirs = (dict(each.export_parameters()) for each in (moved, other))
    means = {name: (ours[name] + 2 * theirs[name]) / 3 for name in ours}
    mean = (contributed(moved) + contributed(other)) / (6 * SEQUENCES)
    for each in (moved, other):
        apply(each, mean, 1)
        for name, weight in each.export_parameters().items():
            torch.testing.assert_close(weight, means[name])
    assert same(moved, other)


def test_a_joiner_takes_the_snapshot_and_missed_results(
    new_replica: Callable[[], Replica], tmp_path: Path
) -> None:
    giver, other, joiner = (new_replica() for _ in range(3))
    play_round([giver, other], 1)
    digest = state_digest(giver.state_arenas())
    snapshot = write_snapshot(tmp_path, 1, b"h" * 32, digest, giver.state_arenas())
    weights = {name: value.clone() for name, value in giver.export_parameters().items()}
    missed = play_round([giver, other], 2)

    joiner.load_state(snapshot.load(), 1)
    for name, weight in joiner.export_parameters().items():
        assert torch.equal(weight, weights[name]), name
    apply(joiner, missed, 2)
    assert same(joiner, giver)


def test_what_it_keeps_is_reckoned_with(run: RunFile) -> None:
    layout = ParameterLayout.of({"matrix": (32, 16), "bias": (16,)})
    assert list(shared_state(run, layout)) == ["master"]
    plain = parse_run_text(RUN.replace("weight-average", "every-step"))
    assert len(shared_state(plain, layout)) == 3
    assert peer_bytes(run, layout) - peer_bytes(plain, layout) == 8 * 528
