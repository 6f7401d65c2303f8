import math
from decimal import Context, Decimal, localcontext

import pytest

from atom.optim.rate import Decay, RateSettings, _cosine, learning_rate

DECAYS = pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])


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


@pytest.mark.parametrize(
    ("given", "round", "expected"),
    [
        (RateSettings(1.0, 0.0, decay="cosine", rounds=101), 51, 0.5),
        (RateSettings(1.0, 0.0, decay="cosine", rounds=101), 26, 0.8535533906),
        (RateSettings(1.0, 0.0, decay="linear", rounds=101), 26, 0.75),
        (RateSettings(1.0, 0.1, 10, "cosine", 111), 61, 0.55),
        (RateSettings(1.0, 0.1, 50, "cosine", 10), 10, 10 / 51),  # the warm-up outlasts the run
        (RateSettings(1.0, 0.1, 0, "cosine", 1), 1, 0.1),
    ],
)
def test_single_rates(given: RateSettings, round: int, expected: float) -> None:
    assert learning_rate(given, round) == pytest.approx(expected)


def test_rounds_count_from_one() -> None:
    with pytest.raises(ValueError, match="round 1"):
        learning_rate(settings("constant"), 0)


@pytest.mark.parametrize("progress", [k / 97 for k in range(98)])
def test_a_cosine_depends_on_no_mathematics_library(progress: float) -> None:
    with localcontext(Context(prec=50)):
        half, whole = _cosine(Decimal(progress) / 2), _cosine(Decimal(progress))
        assert abs(whole - (2 * half * half - 1)) < Decimal("1e-40")
    assert float(whole) == pytest.approx(math.cos(math.pi * progress), abs=1e-15)
