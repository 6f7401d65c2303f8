"""The check at start-up: the differences that it finds, its messages, and its size limit."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from traced_modules import TiedGPT, hidden_states, tokens_and_targets
from untraceable_modules import OtherDtype, Two

from atom.base.errors import ModelError
from atom.graph.program import compile_program
from atom.graph.verify import parameter_bytes, too_large_to_compare, verify_against_eager

_NOISE = itertools.count(1)


@torch.library.custom_op("atom_tests::noisy", mutates_args=())
def noisy(value: Tensor) -> Tensor:
    """Operator whose results differ between calls without any random generator."""
    return value * (1 + next(_NOISE) * 1e-3)


@torch.library.custom_op("atom_tests::cubed", mutates_args=())
def cubed(value: Tensor) -> Tensor:
    return value**3


@torch.library.custom_op("atom_tests::one_way", mutates_args=())
def one_way(value: Tensor) -> Tensor:
    return value * 2


@torch.library.custom_op(
    "atom_tests::jittered", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def jittered(value: Tensor) -> Tensor:
    return value + torch.randn_like(value)


for operator in (noisy, cubed, one_way, jittered):
    operator.register_fake(torch.empty_like)
noisy.register_autograd(lambda ctx, gradient: gradient)
jittered.register_autograd(lambda ctx, gradient: gradient)
cubed.register_autograd(
    lambda ctx, gradient: gradient * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Uses(Two):
    def __init__(self, operator: object) -> None:
        super().__init__()
        self.operator = operator

    def forward(self, hidden: Tensor) -> Tensor:
        return self.other(self.operator(self.layer(hidden))).square().mean()


class ReadsSettings(Two):
    """Model that reads settings which tests change from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 1.0
        self.register_buffer("bound", torch.tensor(5.0))

    def forward(self, hidden: Tensor) -> Tensor:
        return (self.layer(hidden).clamp(max=self.bound) / self.temperature).sum()


def check(model: nn.Module) -> None:
    program = compile_program(model, hidden_states())
    verify_against_eager(model, program, hidden_states(1))


@pytest.mark.parametrize("operator", [cubed, jittered])
def test_operators_with_a_registered_backward_stay_whole(operator: object) -> None:
    torch.manual_seed(0)
    check(Uses(operator))


def test_an_operator_that_does_not_repeat() -> None:
    with pytest.raises(ModelError, match="sub-models give another value for the loss") as refusal:
        check(Uses(noisy))
    assert "operators that do not repeat their results" in refusal.value.hint


def test_an_operator_without_a_backward_is_named() -> None:
    with pytest.raises(ModelError, match=r"fails on this batch.*atom_tests\.one_way"):
        check(Uses(one_way))


class NoNumbers(Two):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def forward(self, hidden: Tensor) -> Tensor:
        loss = super().forward(hidden)
        return loss * float("nan") if self.where == "loss" else loss + (loss - loss).sqrt()


@pytest.mark.parametrize(("where", "what"), [("loss", "the loss"), ("root", "the gradient of ")])
def test_a_model_that_gives_nan_is_not_said_to_give_other_numbers(where: str, what: str) -> None:
    with pytest.raises(ModelError, match=f"^{what}.*is nan") as refusal:
        check(NoNumbers(where))
    assert "first values" in refusal.value.hint


@pytest.mark.parametrize("name", ["temperature", "bound"])
def test_state_changed_from_outside_shows(name: str) -> None:
    torch.manual_seed(0)
    model = ReadsSettings()
    program = compile_program(model, hidden_states())
    verify_against_eager(model, program, hidden_states(1))
    setattr(model, name, torch.tensor(0.01) if name == "bound" else 0.5)
    with pytest.raises(ModelError, match="sub-models give another value for the loss"):
        verify_against_eager(model, program, hidden_states(1))


def test_the_users_own_mistakes_come_with_their_place() -> None:
    with pytest.raises(ModelError, match=r"fails on this batch at \S+_modules\.py:\d+.*dtype"):
        check(OtherDtype())


def test_what_is_too_large_to_compare() -> None:
    assert not too_large_to_compare(10, limit_bytes=40)
    assert "NOT compared" in too_large_to_compare(10, limit_bytes=39)
    assert "4.0 kB" in too_large_to_compare(1000, limit_bytes=3999)


def test_parameter_bytes_count_tied_ones_once() -> None:
    model = TiedGPT(layers=1)
    tied = sum(p.numel() for p in model.parameters()) * 4
    assert parameter_bytes(model) == parameter_bytes(model.to("meta")) == tied


# --- what is left alone ---


def test_the_model_and_the_random_state_are_left_alone() -> None:
    model, batch = TiedGPT(dropout=0.1), tokens_and_targets()
    model.eval()
    parameters = {name: id(p) for name, p in model.named_parameters()}
    before = torch.get_rng_state()
    program = compile_program(model, batch)
    verify_against_eager(model, program, batch)
    assert torch.equal(torch.get_rng_state(), before)
    assert {name: id(p) for name, p in model.named_parameters()} == parameters
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_one_tensor_under_two_names_stays_two_inputs() -> None:
    torch.manual_seed(0)
    model, ids = TiedGPT(), tokens_and_targets()["tokens"]
    program = compile_program(model, {"tokens": ids, "targets": ids})
    verify_against_eager(model, program, tokens_and_targets(1))
    verify_against_eager(model, program, {"tokens": ids, "targets": ids})


def test_a_program_of_another_model_is_caught_by_parameter() -> None:
    class Detached(TiedGPT):
        def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.blocks[1].up.weight.requires_grad_(False)
            return super().forward(tokens, targets)

    torch.manual_seed(0)
    model, other = TiedGPT(), Detached()
    program = compile_program(model, tokens_and_targets())
    with pytest.raises(ModelError, match=r"blocks\.1\.up\.weight"):
        verify_against_eager(other, program, tokens_and_targets())
