"""The real compiler, the real GPT: a replica against plain PyTorch, bit for bit."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from atom.graph.program import compile_program
from atom.models.gpt3 import GPT3, GPT3Config, initialise
from atom.optim.adamw import AdamW
from atom.swap.device import CpuDevice
from atom.swap.engine import PassCancelled
from atom.swap.host_store import StateForm
from atom.swap.schedule import Arrangement
from atom.swarm.state.arenas import state_digest
from atom.training.replica.replica import Replica
from atom.training.replica.update_rule import EveryStep
from atom.training.storage.run_storage import write_snapshot
from tests.training.plain_training import (
    BETAS,
    CLIP_NORM,
    DROPOUT_SEED,
    WEIGHT_DECAY,
    PlainTraining,
)
from tests.training.small_replica import (
    FIRST_VALUE,
    SEED,
    SEQUENCES,
    apply,
    batches,
    config,
    contributed,
    filled,
    program,
    same,
    step_once,
)

STEPS = 3
CUTS = {"finest": None, "halves": ((0, 1), (2, 3)), "whole": ((0, 3),)}
SETTINGS = {
    "optimizer": AdamW(betas=BETAS, weight_decay=WEIGHT_DECAY),
    "clip_norm": CLIP_NORM,
    "dropout_seed": DROPOUT_SEED,
}


def new_replica(device: CpuDevice, cut: str = "finest") -> Replica:
    made = program(0.1, cut=CUTS[cut])
    return filled(device, made, program(0.0, cut=CUTS["halves"]), **SETTINGS)


# --- what a codec took away ---------------------------------------------------------------------


def test_what_a_codec_took_away_is_in_the_next_contribution_once(device: CpuDevice) -> None:
    """A round without this peer's contribution keeps the error; another state has none."""
    rule = partial(EveryStep, keeps_lost=True)
    replica, other = (filled(device, program(0.0), update_rule=rule) for _ in range(2))
    lost = torch.randn(replica.elements, generator=torch.Generator().manual_seed(3))
    for each, knows in ((replica, True), (other, False)):
        each.contribution().record_lost(0, lost)
        each.begin_step(lost / 100, 1.0, 1, 4, knows)
        each.begin_step(lost / 100, 1.0, 2, 0)
        each.run_pass(batches(1, 5))
    for _ in range(2):
        assert torch.equal(contributed(replica), contributed(other) + lost)
    replica.begin_step(lost / 100, 1.0, 3, 4, True)
    replica.load_state({name: t.clone() for name, t in other.state_arenas().items()}, 2)
    replica.reset_gradients()
    assert not contributed(replica).any()


# --- passes and steps ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "dropout", "micro_batches", "slots"),
    [
        ("finest", 0.1, 3, 2),
        ("finest", 0.0, 1, 3),
        ("halves", 0.1, 1, 2),
        ("halves", 0.0, 3, 3),
        ("whole", 0.1, 3, 3),
        ("whole", 0.0, 1, 2),
    ],
)
def test_training_is_bit_equal_to_plain_pytorch(
    device: CpuDevice, cut: str, dropout: float, micro_batches: int, slots: int
) -> None:
    made = program(dropout, cut=CUTS[cut])
    replica = filled(device, made, arrangement=Arrangement(slots), **SETTINGS)
    plain = PlainTraining(dropout, micro_batches > 1 and cut != "whole")
    for round in range(1, STEPS + 1):
        data = batches(micro_batches, seed=round)
        replica.run_pass(data)
        losses = plain.step(data, round)
        assert replica.sequences == SEQUENCES * micro_batches
        assert replica.loss_sum == sum(loss * SEQUENCES for loss in losses)
        apply(replica, replica.gradient_sums() / replica.sequences, round)
        for name, weight in replica.export_parameters().items():
            assert torch.equal(weight, plain.parameters[name]), (round, name)


def stop_after(calls: int) -> Callable[[], bool]:
    remaining = iter([False] * calls)
    return lambda: next(remaining, True)


def test_a_pass_cancelled_too_late_takes_the_gradients_with_it(device: CpuDevice) -> None:
    replica, whole = new_replica(device), new_replica(device)
    replica.reset_gradients()
    for each in (replica, whole):
        counted = each.run_pass(batches(1, 1))
    with pytest.raises(PassCancelled):
        replica.run_pass(batches(2, 1), stop_after(10))
    assert replica.sequences == counted, "nothing of it had left yet"
    assert torch.equal(replica.gradient_sums(), whole.gradient_sums())
    with pytest.raises(PassCancelled):
        replica.run_pass(batches(2, 1), lambda: not replica.breakable)
    assert (replica.sequences, replica.loss_sum) == (0, 0.0)
    assert not replica.gradient_sums().any()
    whole.reset_gradients()
    for each in (replica, whole):
        each.run_pass(batches(1, 2))
    assert torch.equal(replica.gradient_sums(), whole.gradient_sums())
    assert same(replica, whole)


def test_evaluation_has_no_dropout_and_changes_nothing(device: CpuDevice) -> None:
    replica = new_replica(device)
    model = GPT3(config(0.1)).eval()
    initialise(model, SEED)
    data = batches(3, 5)
    with torch.no_grad():
        expected = sum(model(**batch).item() * SEQUENCES for batch in data) / (3 * SEQUENCES)
    assert replica.evaluate(data) == expected
    assert not replica.gradient_sums().any()
    replica.run_pass(data)
    assert replica.evaluate(data) == expected


def test_a_replica_looks_at_its_sound_passes(device: CpuDevice) -> None:
    replica = new_replica(device)
    with pytest.raises(PassCancelled):
        replica.run_pass(batches(1, 1), stop_after(4))
    replica.evaluate(batches(1, 3))
    assert replica.watch.figures() is None, "none was sound"
    replica.run_pass(batches(2, 1))
    figures = replica.watch.figures()
    assert figures is not None
    assert figures["computing"] > 0


# --- state --------------------------------------------------------------------------------------


def test_first_values_do_not_depend_on_threads(device: CpuDevice) -> None:
    replica, plain = filled(device, program()), filled(device, program())
    replica.initialise(FIRST_VALUE, 3)
    assert same(replica, plain)
    with pytest.raises(ValueError, match="is not"):
        replica.initialise(lambda name, shape: torch.zeros(3), 3)


def test_what_does_not_fit_or_follow_changes_nothing(device: CpuDevice) -> None:
    replica, untouched = new_replica(device), new_replica(device)
    state = {name: arena + 1 for name, arena in replica.state_arenas().items()}
    mean = torch.ones(replica.elements)
    short = [{name: value[:1] for name, value in batches(1, 1)[0].items()}]
    refused: dict[str, Callable[[], object]] = {
        "exp_avg_sq": lambda: replica.load_state({**state, "exp_avg_sq": torch.zeros(3)}, 4),
        "norm": lambda: replica.begin_step(mean, float("nan"), 1),
        "does not fit": lambda: replica.begin_step(mean[1:], 1.0, 1),
        "does not follow": lambda: replica.begin_step(mean, 1.0, 2),
        "when the program was made": lambda: replica.run_pass(short),
    }
    for why, call in refused.items():
        with pytest.raises(ValueError, match=why):
            call()
    assert same(replica, untouched)
    assert replica.step_count == 0


def test_a_program_of_another_precision_or_model_is_refused(device: CpuDevice) -> None:
    with pytest.raises(ValueError, match="traced in"):
        filled(device, program(), precision=torch.bfloat16)
    smaller = GPT3(GPT3Config(1, 1, 8, sequence_tokens=8, vocabulary_size=29))
    with pytest.raises(ValueError, match="different models"):
        filled(device, program(), compile_program(smaller, batches(1, 0)[0]))


@pytest.mark.parametrize("form", StateForm)
def test_a_restored_replica_goes_on_alike_and_takes_no_other_form(
    device: CpuDevice, form: StateForm, tmp_path: Path
) -> None:
    def made(form: StateForm) -> Replica:
        programs = program(0.1, torch.bfloat16), program(0.0, torch.bfloat16)
        given = {**SETTINGS, "precision": torch.bfloat16, "state_form": form}
        return filled(device, *programs, **given)

    one, restored = made(form), made(form)
    for name, weight in one.export_parameters().items():
        assert torch.equal(weight, FIRST_VALUE(name, tuple(weight.shape))), name
    for round in range(1, 4):
        step_once(one, batches(3, round), round)
    digest = state_digest(one.state_arenas())
    snapshot = write_snapshot(tmp_path, 3, b"h" * 32, digest, one.state_arenas())
    state_bytes = sum(arena.nbytes for arena in one.state_arenas().values())
    assert state_bytes == sum(arena.size_bytes for arena in one.state_form.values())
    restored.load_state(snapshot.checked(digest), 3)
    assert restored.evaluate(batches(2, 9)) == one.evaluate(batches(2, 9))
    apply(restored, step_once(one, batches(1, 4), 4), 4)
    assert same(one, restored)
    another = made(StateForm.HALF if form is StateForm.SPLIT else StateForm.SPLIT)
    untouched = state_digest(another.state_arenas())
    with pytest.raises(ValueError, match="does not fit"):
        another.load_state(one.state_arenas(), 4)
    assert state_digest(another.state_arenas()) == untouched
