"""The accuracy of plans is measured, at toy size. How accurate they are is nobody's business."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOO_LONG_S = 100
WITH_TORCH_ALONE = """
import runpy, sys
for name in ("pydantic", "hivemind", "grpc", "google", "blake3", "cryptography", "base58",
             "psutil", "rich", "typer", "matplotlib", "safetensors", "tokenizers", "transformers"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(name: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-c", WITH_TORCH_ALONE, str(BENCHMARKS / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOO_LONG_S)
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stderr, "the table is for people"
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def test_every_amount_of_memory_is_foretold_and_measured() -> None:
    body = run("plan_accuracy.py", "--models", "tiny", "--runs", "2", "--micro-batches", "2")
    assert (body["benchmark"], body["device"], body["threads"]) == ("plan_accuracy", "cpu", 1)
    rows = body["rows"]
    assert [row["memory"] for row in rows] == ["swapped", "partly", "resident"]
    for row in rows:
        assert len(row["foretold_s"]) == len(row["measured_s"]) == 2
        quotient = median(row["foretold_s"]) / median(row["measured_s"])
        assert row["ratio"] == pytest.approx(quotient)
        assert row["ratio_own_seconds"] > 0
        assert row["ratio_lanes"] > 0
        assert 0 < row["computing_foretold"] <= 1
        assert 0 < row["computing"] <= 1
        assert row["micro_batches"] in (1, 2)
    assert len(rows[2]["resident"]) == rows[2]["sub_models"]
    assert len(rows[0]["resident"]) < rows[0]["sub_models"]
    assert rows[0]["device_bytes"] < rows[2]["device_bytes"]
    assert body["ratio_by_model"] == {"tiny": median(row["ratio"] for row in rows)}
