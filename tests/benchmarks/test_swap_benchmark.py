"""The swap benchmark at toy size: every kind of case runs, the JSON has its shape, and the
arithmetic is right. Speeds are not judged."""

import json
import math
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from programs import ROOT, torch_alone

from benchmarks.swap.atom_side import Atom
from benchmarks.swap.cases import BY_NAME, CASES
from benchmarks.swap.exactness import Exactness
from benchmarks.swap.measure import Measured
from benchmarks.swap.processes import Child, Deadline, SideFailed
from benchmarks.swap.setup import Setup, SideMissing
from benchmarks.swap.table import side_rows


def run(folder: Path, *options: str, says: str = "") -> dict[str, Any]:
    body = programs.run(
        "swap.run", *options, "--runs", "1", "--steps", "1", says=says, env=torch_alone(folder)
    )
    assert (body["benchmark"], body["device"], body["toy"]) == ("swap", "cpu", True)
    return body


def test_sides_in_turn_with_torch_alone(tmp_path: Path) -> None:
    files = "--json", str(tmp_path / "json")
    body = run(tmp_path, "--sides", "memory", "--gpu-memory", "64 MiB", *files)
    (case,) = body["cases"]
    assert set(case["sides"]) == {"atom", "memory"}
    assert not case["missing"]
    for side in case["sides"].values():
        assert all(loss < math.log(256) + 0.1 for loss in side["losses"])
        assert side["memory"]["host_bytes"] > 10**7
    seconds = [case["sides"][side]["step"]["median_s"] for side in ("memory", "atom")]
    assert case["figures"]["speed beside memory"] == pytest.approx(seconds[0] / seconds[1])
    assert case["sides"]["atom"]["facts"]["planned"]["device_bytes"] <= 64 * 2**20
    assert json.loads((tmp_path / "json").read_text())["cases"] == body["cases"]


@pytest.mark.parametrize("layout", ["exact", "split"])
def test_sixteen_bits_are_compared_too(layout: str) -> None:
    """Text, several micro-batches, a tied table, clipping, float32 masters: all of plain PyTorch's
    weights, whole or in halves."""

    setup = Setup("exactness", "tiny", 1, "bfloat16", "cpu", micro_batches=2, layout=layout)
    try:
        sides = Exactness(setup)
        for step in range(3):
            sides.step(setup.batches(2, step))
        assert sides.facts() == {"steps": 3, "equal_steps": 3, "differs": None}
        name = list(sides.reference.masters)[-1]
        sides.reference.masters[name] += 1e-6
        sides.step(setup.batches(2, 3))
        assert sides.equal_steps == 3
        assert name in (sides.differs or "")
        sides.close()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_deadline_ends_it_with_what_there_is(tmp_path: Path) -> None:
    absent = "not measured: out of time"
    body = run(tmp_path, "--case", "all", "--deadline", "10.5", says=absent)
    assert body["cases"][-1]["out_of_time"]


def test_the_page_has_every_case_and_target() -> None:

    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table = page.partition("\n## Targets, and an H200\n")[2].partition("\n\nMatrix products")[0]
    rows, case = dict[str, list[str]](), ""
    for line in table.splitlines():
        if line.startswith(("| `", "| | ")):
            name, _, target, _ = (cell.strip() for cell in line.strip("|").split("|"))
            case = name.strip("`") or case
            rows.setdefault(case, []).append(target)
    assert set(rows) == {case.name for case in CASES}
    for name, limits in rows.items():
        wanted = BY_NAME[name].targets
        assert len(limits) == len(wanted), name
        for limit, target in zip(limits, wanted, strict=True):
            assert limit == "all" or limit.startswith(("≥ ", "≤ ")), limit
            if limit != "all" and "%" not in limit and "GiB" not in limit:
                assert float(limit.split()[1]) == target.limit, (name, limit)


def test_sums_that_cannot_be_divided_exactly_are_refused_before_anything_is_taken() -> None:
    """Sums in float32 may have any number of sequences: `exactness` has three."""

    setup = Setup("atom", "tiny", 1, "bfloat16", "cpu", micro_batches=3, gradients="bfloat16")
    with pytest.raises(SideMissing, match="3 sequences per step: with gradients in bfloat16"):
        Atom(setup)


def test_a_side_that_breaks_is_reported() -> None:
    with pytest.raises(SideFailed, match="no side is called 'none'") as broken:
        Child(Setup("none", "tiny", 1, "float32", "cpu"), Deadline())
    measured = Measured(BY_NAME["tiny"], missing={"none": str(broken.value)})
    (row,) = side_rows(measured)
    assert row == {"case": "tiny", "side": "none", "s per step": str(broken.value)}
