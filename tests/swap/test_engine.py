"""A swapped step is the plain step, bit for bit."""

import threading
from collections.abc import Sequence

import pytest
import torch
from engine_rig import EngineRig
from hand_written_program import FINEST, HALVES, WHOLE, batches, initial_value, plain_loss
from padded_adamw import PaddedAdamW
from torch import Tensor

from atom.graph.ir import Program
from atom.optim.adamw import AdamW
from atom.swap.schedule import Arrangement
from tests.one_step import take_step

SETTINGS = AdamW(betas=(0.9, 0.99), weight_decay=0.1)
RATE, STEPS = 0.05, 3
CUTS = pytest.mark.parametrize("cut", [FINEST, HALVES, WHOLE], ids=["finest", "halves", "whole"])


def plain_parameters(program: Program) -> dict[str, Tensor]:
    return {
        spec.name: initial_value(spec.name, spec.shape).requires_grad_()
        for spec in program.layout.specs
    }


def plain_gradients(
    parameters: dict[str, Tensor],
    micro_batches: Sequence[dict[str, Tensor]],
    seeds: Sequence[int],
    dropout: float,
    tie_is_cut: bool,
) -> list[float]:
    """Leave plain PyTorch's gradients, summed over sequences, in `.grad`.

    Where the cut parts the two uses of the tied weight, its sum is defined layer-major: first all
    micro-batches of the later use, then all of the earlier use.
    """
    apart = tie_is_cut and len(micro_batches) > 1
    tied = parameters["embed.weight"]
    head = tied.detach().clone().requires_grad_() if apart else tied
    for parameter in parameters.values():
        parameter.grad = None
    losses, early = [], []
    for batch, seed in zip(micro_batches, seeds, strict=True):
        torch.manual_seed(seed)
        loss = plain_loss(batch, parameters, dropout, head)
        loss.backward(torch.tensor(float(len(batch["tokens"]))))
        losses.append(loss.item())
        if apart:
            early.append(tied.grad)
            tied.grad = None
    if apart:
        tied.grad = head.grad
        for gradient in early:
            tied.grad = tied.grad + gradient
    return losses


@pytest.mark.parametrize(("sizes", "slots"), [((4,), 3), ((4, 3, 5), 2)])
@CUTS
def test_steps_are_bit_equal_to_plain_pytorch(
    cut: Sequence[Sequence[str]], sizes: tuple[int, ...], slots: int
) -> None:
    rig, dropout = EngineRig(cut, arrangement=Arrangement(slots)), 0.1
    adamw = SETTINGS
    plain = plain_parameters(rig.program)
    optimizer = PaddedAdamW(plain, SETTINGS, RATE)
    for step in range(1, STEPS + 1):
        micro_batches = batches(sizes, seed=step)
        seeds = [100 * step + c for c in range(len(sizes))]

        rig.store.gradients.zero_()
        losses = rig.engine.run_pass(micro_batches, seeds)
        plain_losses = plain_gradients(plain, micro_batches, seeds, dropout, cut is not WHOLE)
        assert losses == plain_losses
        for name, gradient in rig.gradients().items():
            assert torch.equal(gradient, plain[name].grad), name

        take_step(adamw, rig.store, rig.store.gradients / sum(sizes), RATE, step)
        for parameter in plain.values():
            parameter.grad /= sum(sizes)
        optimizer.step()
        for name, weight in rig.parameters().items():
            assert torch.equal(weight, plain[name]), name


@CUTS
def test_a_parameter_used_many_times_sums_in_autograds_order(cut: Sequence[Sequence[str]]) -> None:
    rig = EngineRig(cut, gain=True)
    plain = plain_parameters(rig.program)
    micro_batches = batches([5])
    rig.engine.run_pass(micro_batches, [7])
    plain_gradients(plain, micro_batches, [7], 0.1, tie_is_cut=True)
    for name, gradient in rig.gradients().items():
        assert torch.equal(gradient, plain[name].grad), name


def test_passes_add_up() -> None:
    rig, once = EngineRig(FINEST), EngineRig(FINEST)
    first, second = batches([4], seed=1), batches([2], seed=2)
    rig.engine.run_pass(first, [1])
    after_first = rig.store.gradients.clone()
    rig.engine.run_pass(second, [2])
    once.engine.run_pass(second, [2])
    assert torch.equal(rig.store.gradients, after_first + once.store.gradients)
    inside = torch.zeros(rig.program.layout.total_elements, dtype=torch.bool)
    for spec in rig.program.layout.specs:
        inside[spec.offset : spec.offset + spec.numel] = True
    assert not rig.store.gradients[~inside].any(), "gaps between parameters"
    assert rig.store.gradients[inside].all()


def test_recompute_sees_what_the_forward_saw() -> None:
    """Gradients on, and the same inputs requiring them, both times: kernels are chosen by it."""
    rig = EngineRig(FINEST)
    rig.engine.run_pass(batches([2]), [0])
    for module_class in rig.classes[:-1]:
        forward, recompute = module_class.calls
        assert forward == recompute
        assert forward[0] is True
    assert len(rig.classes[-1].calls) == 1, "the last sub-model is computed once"


def test_global_random_state_is_left_alone() -> None:
    rig = EngineRig(FINEST)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    rig.engine.run_pass(batches([2]), [0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_half_precision_computes_in_it_and_sums_in_float32(precision: torch.dtype) -> None:
    scale = 2.0**10 if precision == torch.float16 else 1.0
    rig = EngineRig(FINEST, precision, dropout=0.0, loss_scale=scale)
    exact = EngineRig(FINEST, dropout=0.0)
    micro_batches = batches([4, 3])
    losses = rig.engine.run_pass(micro_batches, [0, 0])
    assert losses == pytest.approx(exact.engine.run_pass(micro_batches, [0, 0]), rel=0.02)
    assert rig.slots.weights[0].dtype == precision
    reference = exact.store.gradients
    error = (rig.store.gradients - reference).norm() / reference.norm()
    assert error < 0.03
    take_step(SETTINGS, rig.store, rig.store.gradients / 7, RATE, 1)
    assert torch.equal(rig.store.working, rig.store.master.to(precision))


@pytest.mark.parametrize(
    ("micro_batches", "seeds"),
    [([], []), (batches([2]), [])],
)
def test_batches_that_do_not_fit_are_refused(
    micro_batches: list[dict[str, Tensor]], seeds: list[int]
) -> None:
    with pytest.raises(ValueError, match="micro-batch"):
        EngineRig(FINEST).engine.run_pass(micro_batches, seeds)


def test_closing_ends_the_threads() -> None:
    rig = EngineRig(FINEST)
    before = set(threading.enumerate())
    rig.engine.run_pass(batches([2]), [0])
    assert set(threading.enumerate()) - before
    rig.device.close()
    rig.device.close()
    assert set(threading.enumerate()) <= before
