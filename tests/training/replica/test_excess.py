"""Sums that a ring would take for a liar's are not offered, and training goes on all the same."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from atom.base.events import EventList
from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initial_value
from atom.optim.adamw import AdamWSettings
from atom.optim.clipping import gradient_norm
from atom.optim.rate import RateSettings
from atom.swap.arrangement import Arrangement
from atom.swap.device import CpuDevice
from atom.swap.gate import largest_size
from atom.swarm.chain.usual_gradients import NORMS_REMEMBERED, part_limit
from atom.training.replica.excess import Excess
from atom.training.replica.replica import Replica, ReplicaSettings
from atom.training.round.vocabulary import Frozen
from tests.manual_clock import ManualClock
from tests.training.hands_stage import BALLOT, LIMIT, Stage

CONFIG = GPT3Config(1, 2, 16, sequence_tokens=8, vocabulary_size=29)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()
    assert stage.failures.empty()


def frozen_with(stage: Stage, number: float) -> Frozen:
    """What is offered if one number of the sums of a whole batch is this."""
    replica = stage.replica
    stage.on_worker(lambda: replica.run_pass([stage.deck.next_batch(8)], lambda: False))
    stage.on_worker(lambda: replica.gradients.index_fill_(0, torch.tensor([5]), number))
    stage.hands.freeze(BALLOT, LIMIT)
    frozen = stage.next_event()
    assert isinstance(frozen, Frozen)
    return frozen


def test_sums_within_the_limit_are_offered_as_they_are(stage: Stage) -> None:
    assert frozen_with(stage, -24.0) == Frozen(BALLOT, 8, 16.0)
    assert stage.replica.gradients[5] == -24.0
    assert stage.events.events == []


def test_sums_beyond_it_are_void_and_told(stage: Stage) -> None:
    assert frozen_with(stage, -25.0) == Frozen(BALLOT, 0, 0.0)
    (told,) = stage.events.events
    assert (told["event"], told["reason"]) == ("pass-voided", "sums-too-large")
    assert told["detail"] == "a number of 25, where the latest rounds allow 24"
    assert told["sequences_lost"] == stage.hands.tally.sequences_dropped == 8
    assert not stage.replica.gradients.any()


def test_who_would_never_take_part_again_makes_them_smaller(stage: Stage) -> None:
    counts = [frozen_with(stage, number).sequences for number in (1e20, 1e6, 2400.0)]
    assert counts == [0, 0, 8], "at the same head, nobody came without"
    assert 23.0 < stage.replica.gradients.abs().max() < 24.0
    told = stage.events.events[-1]
    assert (told["event"], told["largest"], told["limit"]) == ("gradients-reduced", 2400.0, 24.0)


def test_numbers_that_are_none_are_never_made_smaller(stage: Stage) -> None:
    counts = [frozen_with(stage, float("nan")).sequences for _ in range(4)]
    assert counts == [0, 0, 0, 0]


def test_at_another_head_it_is_an_error_again(stage: Stage) -> None:
    for _ in range(2):
        assert frozen_with(stage, 1e6).sequences == 0
        stage.step(stage.commit(stage.hold(0.5)))
    assert frozen_with(stage, 1e6).sequences == 0


def test_ordinary_training_never_comes_near() -> None:
    generator = torch.Generator().manual_seed(5)

    def batch(sequences: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(29, (sequences, 9), generator=generator)
        return {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}

    device, events, norms = CpuDevice(), EventList(), tuple[float, ...]()
    program = compile_program(GPT3(CONFIG), batch(2))
    rate = RateSettings(1e-2, 1e-3, warmup_rounds=2, decay="cosine", rounds=16)
    adamw = AdamWSettings(betas=(0.9, 0.99), weight_decay=0.1)
    settings = ReplicaSettings(rate, adamw, 0.0, torch.float32, Arrangement(2), dropout_seed=3)
    replica = Replica(program, None, settings, device, ManualClock())
    replica.initialise(functools.partial(initial_value, CONFIG, seed=11))
    excess = Excess(replica, events, lambda void: pytest.fail(void.message))
    for number in range(1, 17):
        replica.reset_gradients(bytes([number]))
        replica.run_pass([batch(2)])  # of a batch of sixteen: the noisiest of parts
        limit = part_limit(norms, 16).of(replica.sequences)
        assert 30 * largest_size(replica.gradients) < limit
        excess.keep_within(limit)
        replica.run_pass([batch(2) for _ in range(7)])
        mean = replica.gradients / replica.sequences
        norms = (*norms, gradient_norm(mean))[-NORMS_REMEMBERED:]
        replica.apply(mean, norms[-1], number)
    assert events.events == []
    device.close()
