"""The papers' pipelines in small: the same shares of a step, what steps come to, losses."""

from pathlib import Path

import pytest

from benchmarks.papers import figures, pipeline
from benchmarks.papers.figures import STEP_TOKENS, Pipeline, Scale, Step, Trial
from benchmarks.shared.seats import loopback

REAL = Pipeline(1.3e9, model_dim=2048, nodes=4, flops_per_s=117.6e12, line_bytes_per_s=50e6)


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 1.0), (3.0, 64.0)])
@pytest.mark.parametrize("micro_batches", [16, 64])
def test_a_small_pipeline_has_the_real_ones_shares(
    seconds: float, count: float, micro_batches: int
) -> None:
    scale = Scale(seconds, count)
    trial = Trial.of(REAL, scale, "GPipe", micro_batches, 1)
    tokens = STEP_TOKENS / micro_batches
    sending_s = trial.elements * figures.NUMBER_BYTES / scale.line(REAL.line_bytes_per_s)
    real_s = REAL.boundary_bytes(tokens) / REAL.line_bytes_per_s
    assert sending_s / trial.forward_s == pytest.approx(real_s / REAL.forward_s(tokens))
    assert sending_s * seconds == pytest.approx(real_s)


def test_speed_is_the_first_stages_and_busy_the_mean() -> None:
    trial = Trial("GPipe", micro_batches=2, steps=2, forward_s=0.5, elements=8)
    first = [Step(0, 10.0, 20.0, 3.0), Step(0, 20.0, 30.0, 3.0), Step(1, 30.0, 90.0, 9.0)]
    last = [Step(0, 10.0, 17.0, 4.0), Step(0, 20.0, 28.0, 4.0)]
    (told,) = figures.found([trial], Scale(4.0, 1.0), [first, last])
    assert told.tokens_per_s == pytest.approx(2 * STEP_TOKENS / (20.0 * 4.0))
    assert told.busy == pytest.approx(7.0 / 20.0)
    assert told.late == pytest.approx(7.0 / 6.0)


def test_torchs_schedules_over_stages_that_sleep(tmp_path: Path) -> None:
    trials = [Trial(name, 4, 2, 1e-4, 8) for name in pipeline.SCHEDULES]
    with pipeline.running(loopback(2), tmp_path, trials) as stages:
        stages.hear(float("inf"))
    for steps in stages.steps:
        assert [step.trial for step in steps] == [0, 0, 1, 1]
        assert all(0 < step.passes_s < step.ended - step.began for step in steps)
