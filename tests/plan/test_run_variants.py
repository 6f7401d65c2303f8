"""A run as it could be founded instead, and the mode that is recommended."""

import pytest

from atom.config.load import parse_run_text
from atom.config.run_file import RunFile
from atom.plan.planning import recommend, run_variants

RUN = """
[run]
name = "tiny"
[model]
family = "gpt3"
layers = 1
heads = 1
model_dim = 8
{model}
[data]
source = "python-stdlib"
[batch]
global_sequences = {sequences}
micro_batch_sequences = 4
[optimizer]
learning_rate = 1e-3
{optimizer}
[swarm]
codec = "float32"
grace_seconds = 3.0
{more}
"""
LOCAL = '[update]\nrule = "local-steps"\ninner_sequences = 6\nouter_rate = 0.7'


def variants(
    sequences: int, peers: int = 3, more: str = "", model: str = "", optimizer: str = ""
) -> list[RunFile]:
    text = RUN.format(sequences=sequences, more=more, model=model, optimizer=optimizer)
    return list(run_variants(parse_run_text(text), peers))


def ways(found: list[RunFile]) -> list[tuple[str, str, int, int | None]]:
    return [
        (v.update.rule, v.swarm.codec, v.batch.global_sequences, v.update.inner_sequences)
        for v in found
    ]


def test_an_optimizer_step_has_as_many_sequences_in_every_mode() -> None:
    """16 of a step are 6 of each of 3 peers; 30 steps of theirs are 540."""
    found = variants(16)
    assert ways(found) == [
        ("every-step", "float32", 16, None),
        ("every-step", "bfloat16", 16, None),
        ("every-step", "int8", 16, None),
        ("local-steps", "int4", 540, 6),
        ("local-steps", "sparse", 540, 6),
    ]
    assert all(v.swarm.grace_seconds == 3.0 for v in found), "all else is the run's"


def test_a_run_of_local_steps_keeps_its_own_terms() -> None:
    found = variants(720, more=LOCAL)
    assert ways(found)[0] == ("every-step", "float32", 18, None)
    assert ways(found)[-2] == ("local-steps", "int4", 720, 6)
    assert found[-1].update.outer_rate == 0.7


def test_what_a_run_file_may_not_ask_for_is_left_out() -> None:
    half = 'gradients = "bfloat16"'
    found = variants(16, model='precision = "bfloat16"', optimizer=half)
    assert ("every-step", "int8") not in {(v.update.rule, v.swarm.codec) for v in found}
    assert len(found) == 4


def test_an_optimizer_step_has_a_micro_batch_at_least() -> None:
    found = variants(4, peers=8)
    assert ways(found)[-1] == ("local-steps", "sparse", 240, 1)
    assert ways(variants(6, peers=1, more=LOCAL.replace("6", "2")))[0][2] == 4


@pytest.mark.parametrize(
    ("shares", "best", "reason"),
    [
        ((0.999, 1.0, 1.0), 0, "passes take 100% of the time on this line."),
        ((0.81, 0.94, 1.0), 1, "passes take 94% of the time on this line, and 81% by every-step "
                               "with float32; needs 4.3 GB more host memory."),
        ((0.05, 0.25, 1.0), 2, "passes take 100% of the time on this line, and 25% by every-step "
                               "with bfloat16; needs 21.5 GB more host memory."),
        ((0.0, 0.004, 0.32), 2, "passes take 32% of the time on this line, and 0% by every-step "
                                "with bfloat16; needs 21.5 GB more host memory."),
    ],
)  # fmt: skip
def test_the_most_exact_mode_that_leaves_time_is_recommended(
    shares: tuple[float, ...], best: int, reason: str
) -> None:
    exact, rounded, _, local, _ = variants(16)
    offered = [exact, rounded, local]
    found = recommend(offered, shares, (0, 4 << 30, 20 << 30))
    assert found.run is offered[best]
    assert found.reason == reason
