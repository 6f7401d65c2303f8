"""Benchmarks as programs, at toy size; and logs of daemons, as their arithmetic reads them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOO_LONG_S = 100
ABSENT = (
    "pydantic", "hivemind", "grpc", "google", "blake3", "cryptography", "base58", "psutil", "rich",
    "typer", "matplotlib", "safetensors", "tokenizers", "transformers", "aiohttp",
)  # fmt: skip


def started(program: str, *options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m benchmarks.PROGRAM`."""
    command = [sys.executable, "-m", f"benchmarks.{program}", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TOO_LONG_S, **more
    )


def run(
    program: str, *options: str, says: str = "ratio", env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON of a program. `says`: words that its table must have."""
    done = started(program, *options, env=env)
    assert done.returncode == 0, done.stderr
    assert says in done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def torch_alone(folder: Path) -> dict[str, str]:
    """Return an environment in which the packages of `ABSENT` cannot be imported."""
    for name in ABSENT:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is absent')\n")
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def event(time: float, kind: str, **fields: object) -> dict[str, object]:
    return {"time": time, "event": kind, **fields}
