"""The benchmarks run, at toy size, and their JSON has its shape. Speeds are nobody's business."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOO_LONG_S = 100
TIMING = {"median_s", "fastest_s", "slowest_s", "runs_s"}

WITH_TORCH_ALONE = """
import runpy, sys
for name in ("pydantic", "hivemind", "grpc", "google", "blake3", "cryptography", "base58",
             "psutil", "rich", "typer", "matplotlib", "safetensors", "tokenizers", "aiohttp"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(*command: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=TOO_LONG_S
    )
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stderr, "the table is for people"
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def check_timing(timing: dict[str, Any], runs: int) -> None:
    assert set(timing) == TIMING
    assert len(timing["runs_s"]) == runs
    assert 0 < timing["fastest_s"] <= timing["median_s"] <= timing["slowest_s"]


def test_swap_with_torch_alone() -> None:
    program = str(BENCHMARKS / "swap.py")
    body = run("-c", WITH_TORCH_ALONE, program, "--runs", "2", "--micro-batches", "2",
               "--precision", "float32")  # fmt: skip
    assert (body["benchmark"], body["device"], body["precision"]) == ("swap", "cpu", "float32")
    assert body["sub_models"] == 6
    assert body["tokens_per_pass"] == 2 * 2 * 128
    for part in ("pass", "step", "both"):
        for side in ("swapped", "plain"):
            check_timing(body[side][part], runs=2)
        quotient = body["swapped"][part]["median_s"] / body["plain"][part]["median_s"]
        assert body["ratio"][part] == pytest.approx(quotient)
    losses = body["loss_of_first_run"]
    assert losses["swapped"] == pytest.approx(losses["plain"], rel=1e-4)
    assert losses["plain"] < math.log(256)


def test_ring_beside_gloo() -> None:
    program = str(BENCHMARKS / "ring.py")
    sides = ["gloo", "tls", "aes-gcm/int8/2", "none/bfloat16"]
    body = run(
        program, "--members", "2", "--megabytes", "0.1", "0.5", "--runs", "2", "--sides", *sides
    )
    assert (body["benchmark"], body["members"], body["mbit"]) == ("ring", 2, None)
    assert [round(result["megabytes"], 1) for result in body["results"]] == [0.1, 0.5]
    for result in body["results"]:
        assert list(result["sides"]) == sides
        baseline = result["sides"]["gloo"]["seconds"]["median_s"]
        for side in result["sides"].values():
            check_timing(side["seconds"], runs=2)
            assert side["ratio"] == pytest.approx(side["seconds"]["median_s"] / baseline)
            assert side["cpu_ms_per_mb"] > 0
