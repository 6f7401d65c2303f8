"""A run as it could be founded instead, and what that comes to on home lines."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from atom.config.load import parse_run_text
from atom.config.run_file import RunFile
from atom.daemon.model.pinning import plan_run
from atom.plan import planning
from atom.plan.choice import Choice
from atom.plan.planning import PlanRequest, recommend, run_variants, work_of_variant
from atom.plan.prediction import Work, gain, predict

ROOT = Path(__file__).parents[2]
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
                               "with float32; needs 4.0 GiB more host memory."),
        ((0.05, 0.25, 1.0), 2, "passes take 100% of the time on this line, and 25% by every-step "
                               "with bfloat16; needs 20.0 GiB more host memory."),
        ((0.0, 0.004, 0.32), 2, "passes take 32% of the time on this line, and 0% by every-step "
                                "with bfloat16; needs 20.0 GiB more host memory."),
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


def table() -> list[list[str]]:
    """The rows of docs/local-steps.md's table of plans."""
    text = (ROOT / "docs" / "local-steps.md").read_text(encoding="utf-8")
    _, _, below = text.partition("\n| lines, both ways |")
    rows = re.findall(r"^\| \d.*$", below.partition("\n\n")[0], re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_table_of_plans_is_what_the_plan_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The page assumes an optimizer of 750 million parameters per second, so it is not measured."""
    monkeypatch.setattr(planning, "step_elements_per_s", lambda *_: 750e6)
    peer = tmp_path / "peer.toml"
    peer.write_text('[host]\nmemory = "256 GiB"\n')
    run = ROOT / "peers" / "gpt3-2.7b.toml"
    request = PlanRequest(run, peer, assume="rtx4090-24g", peers=8)
    plan = plan_run(request, lambda _: None)
    local = plan.recommendation.run
    assert (local.update.rule, local.swarm.codec) == ("local-steps", "int4")
    modes = {
        "`every-step`, `float32`": plan.work,
        "`local-steps`, `int4`": work_of_variant(plan.work, local),
    }
    assert table() == [
        row(plan.choice, name, replace(work, network_bytes_per_s=rate / 8))
        for rate in RATES
        for name, work in modes.items()
    ]


RATES = {20_000_000: "20 Mbit/s", 100_000_000: "100 Mbit/s", 1_000_000_000: "1 Gbit/s"}


def row(choice: Choice, name: str, work: Work) -> list[str]:
    round_, of = predict(choice, work), gain(choice, work)
    return [
        RATES[round(8 * work.network_bytes_per_s)],
        name,
        f"{round_.line_bytes / 1e9:.1f} GB",
        f"{round_.line_bytes_per_day / 1e9:,.0f} GB",
        f"{100 * round_.utilisation:.1f} %",
        f"{of.swarm:,.0f}",
        f"{of.without:,.0f}",
        f"{of.times_alone:.2g}",
    ]
