import math
from decimal import Context, Decimal, localcontext

import pytest
import torch
from transformers import optimization

from atom.optim.rate import Decay, RateSettings, _cosine, learning_rate

DECAYS = pytest.mark.parametrize("decay", ["constant", "linear", "cosine", "1-sqrt"])


def settings(decay: Decay, rounds: int | None = 100) -> RateSettings:
    return RateSettings(1.0, 0.1, warmup_rounds=10, decay=decay, rounds=rounds)


@DECAYS
def test_it_rises_to_the_peak_falls_to_the_final_rate_and_stays(decay: Decay) -> None:
    rates = [learning_rate(settings(decay), round) for round in range(1, 102)]
    assert rates[:11] == pytest.approx([round / 11 for round in range(1, 12)])
    falling = rates[10:100]
    if decay == "constant":
        assert set(falling) == {1.0}
    else:
        assert falling == sorted(set(falling), reverse=True)
        assert rates[99] == pytest.approx(0.1)
    assert rates[100] == rates[99]
    assert learning_rate(settings(decay, rounds=None), 10**6) == 1.0


def test_a_run_may_be_shorter_than_its_warm_up_or_its_decay() -> None:
    warming = RateSettings(1.0, 0.1, 50, "cosine", 10)
    assert learning_rate(warming, 10) == pytest.approx(10 / 51)
    assert learning_rate(RateSettings(1.0, 0.1, 0, "cosine", 1), 1) == pytest.approx(0.1)
    decaying = RateSettings(1.0, 0.1, 10, "linear", rounds=20, decay_rounds=50)
    assert learning_rate(decaying, 11) == 1.0, "the decay begins after the warm-up"


def rates_of(scheduler: torch.optim.lr_scheduler.LRScheduler, steps: int) -> list[float]:
    """Return the rates of the scheduler's first steps, from step 1 on."""
    found = []
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
        found.append(scheduler.get_last_lr()[0])
    return found


def plain_optimizer(rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


@pytest.mark.parametrize(("warmup", "rounds"), [(0, 2), (0, 500), (7, 100), (199, 1000)])
def test_the_schedules_are_those_of_transformers(warmup: int, rounds: int) -> None:
    """Their warm-up is one step longer: ours gives the first round a rate above zero."""
    peak, name = 3e-3, optimization.get_scheduler
    for decay, final, terms in [
        ("constant", 0.0, {"name": "constant_with_warmup"}),
        ("linear", 0.0, {"name": "linear"}),
        ("cosine", 0.0, {"name": "cosine"}),
        (
            "cosine",
            3e-4,
            {"name": "cosine_with_min_lr", "scheduler_specific_kwargs": {"min_lr": 3e-4}},
        ),
    ]:
        ours = RateSettings(peak, final, warmup, decay, rounds)  # type: ignore[arg-type]
        theirs = name(
            optimizer=plain_optimizer(peak),
            num_warmup_steps=warmup + 1,
            num_training_steps=rounds,
            **terms,  # type: ignore[arg-type]
        )
        assert [learning_rate(ours, r) for r in range(1, rounds + 1)] == pytest.approx(
            rates_of(theirs, rounds), abs=1e-12
        )


@pytest.mark.parametrize("decay", ["linear", "cosine", "1-sqrt"])
@pytest.mark.parametrize(
    ("warmup", "stable", "falling"), [(0, 1, 1), (0, 30, 200), (7, 50, 43), (199, 700, 100)]
)
def test_a_stable_rate_before_the_decay_is_the_wsd_of_transformers(
    decay: Decay, warmup: int, stable: int, falling: int
) -> None:
    rounds = warmup + stable + falling
    ours = RateSettings(3e-3, 0.0, warmup, decay, rounds, falling)
    theirs = optimization.get_wsd_schedule(
        plain_optimizer(3e-3), warmup + 1, falling, num_stable_steps=stable - 1, decay_type=decay
    )
    rates = [learning_rate(ours, round) for round in range(1, rounds + 1)]
    assert rates == pytest.approx(rates_of(theirs, rounds), abs=1e-12)
    assert rates.count(3e-3) == stable
    assert rates[-1] == 0.0


def test_rounds_count_from_one() -> None:
    with pytest.raises(ValueError, match="round 1"):
        learning_rate(settings("constant"), 0)


def test_a_cosine_depends_on_no_mathematics_library() -> None:
    for progress in [k / 97 for k in range(98)]:
        with localcontext(Context(prec=50)):
            half, whole = _cosine(Decimal(progress) / 2), _cosine(Decimal(progress))
            assert abs(whole - (2 * half * half - 1)) < Decimal("1e-40")
        assert float(whole) == pytest.approx(math.cos(math.pi * progress), abs=1e-15)
