import math
from decimal import Context, Decimal, localcontext

import pytest

from atom.optim.rate import Decay, RateSettings, _cosine, learning_rate


def settings(decay: Decay, rounds: int | None = 100) -> RateSettings:
    return RateSettings(1.0, 0.1, warmup_rounds=10, decay=decay, rounds=rounds)


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_warm_up_rises_to_the_peak(decay: Decay) -> None:
    rates = [learning_rate(settings(decay), r) for r in range(1, 12)]
    assert rates == pytest.approx([r / 11 for r in range(1, 12)])


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_falls_to_the_final_rate(decay: Decay) -> None:
    rates = [learning_rate(settings(decay), r) for r in range(11, 101)]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)
    assert rates[-1] == pytest.approx(0.1)
    assert learning_rate(settings(decay), 1000) == 0.1


def test_half_way() -> None:
    odd = RateSettings(1.0, 0.0, decay="cosine", rounds=101)
    assert learning_rate(odd, 51) == pytest.approx(0.5)
    assert learning_rate(odd, 26) == pytest.approx(0.8535533906)


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_endless_runs_stay_at_the_peak(decay: Decay) -> None:
    assert learning_rate(settings(decay, rounds=None), 10**6) == 1.0


def test_constant_never_decays() -> None:
    assert learning_rate(settings("constant"), 100) == 1.0


def test_a_warm_up_longer_than_the_run_and_a_run_of_one_round() -> None:
    assert learning_rate(RateSettings(1.0, 0.1, 50, "cosine", 10), 10) == pytest.approx(10 / 51)
    assert learning_rate(RateSettings(1.0, 0.1, 0, "cosine", 1), 1) == 0.1


def test_rounds_count_from_one() -> None:
    with pytest.raises(ValueError, match="round 1"):
        learning_rate(settings("constant"), 0)


@pytest.mark.parametrize("progress", [k / 97 for k in range(98)])
def test_a_cosine_depends_on_no_mathematics_library(progress: float) -> None:
    with localcontext(Context(prec=50)):
        half, whole = _cosine(Decimal(progress) / 2), _cosine(Decimal(progress))
        assert abs(whole - (2 * half * half - 1)) < Decimal("1e-40")
    assert float(whole) == pytest.approx(math.cos(math.pi * progress), abs=1e-15)
