"""What is learnt from void passes, without passes."""

import torch

from atom.swap.voided import Cause, PassVoided
from atom.training.replica.caution import FIRST_EXPONENT, Caution, LossScale

OVERFLOW = PassVoided(Cause.GRADIENTS, "though the loss is finite")


def test_only_float16_has_a_loss_scale() -> None:
    for precision in (torch.float32, torch.bfloat16):
        caution = Caution(precision, 8)
        assert "diverged" in caution.learn(OVERFLOW, 8).hint
        assert caution.loss_scale(round_begins=True) == 1.0


def test_a_bad_loss_is_no_reason_to_lower_the_scale() -> None:
    caution = Caution(torch.float16, 8)
    caution.learn(PassVoided(Cause.LOSS, "nan in micro-batch 0"), 8)
    assert caution.loss_scale(round_begins=True) == LossScale().value


def test_when_the_scale_cannot_be_lowered_it_says_what_to_do() -> None:
    caution = Caution(torch.float16, 8)
    for _ in range(FIRST_EXPONENT):
        assert "from now on" in caution.learn(OVERFLOW, 8).hint
    assert caution.loss_scale(round_begins=True) == 1.0
    assert "needs bfloat16" in caution.learn(OVERFLOW, 8).hint


def test_what_is_lost_is_passed_on() -> None:
    void = Caution(torch.float32, 8).learn(OVERFLOW, 8, sequences_lost=12)
    assert (void.sequences_lost, void.detail) == (12, OVERFLOW.detail)
