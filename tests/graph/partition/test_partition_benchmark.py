"""The benchmark runs at toy size, and the long chains of its curve are what tracing would give."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_quality_of_a_small_model() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "partition.py"), "--models", "small", "--cards", "h200"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    assert [row["micro_batches"] for row in rows] == [1, 4, 16]
    for row in rows:
        assert row["ratio"] >= 1.0
        assert row["planned"]["seconds"] * row["ratio"] == pytest.approx(row["equal"]["seconds"])
        assert row["exhaustive"]["cuts"] == 13


def test_repeated_blocks_are_the_longer_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import partition as benchmark

    short = benchmark._problem("small", "h200", 1, layers=4).chain
    traced = benchmark._problem("small", "h200", 1, layers=6).chain
    made = benchmark.repeated(short, 6)
    assert made.forbidden == traced.forbidden
    assert sorted(map(repr, made.values)) == sorted(map(repr, traced.values))
    for ours, theirs in zip(made.operations, traced.operations, strict=True):
        assert ours.forward_s == theirs.forward_s
        assert ours.working_bytes == theirs.working_bytes
        assert ours.transient_bytes == theirs.transient_bytes
        assert list(ours.parameters.values()) == list(theirs.parameters.values())
