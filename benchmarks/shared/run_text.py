"""Run files of benchmarks: a small GPT on the text of Python's standard library."""

import json
from typing import Any


def run_text(name: str, **tables: dict[str, Any]) -> str:
    """Return a run file.

    Args:
        name: of the run.
        tables: keys of each table, beside or in the place of the defaults.
    """
    defaults: dict[str, dict[str, Any]] = {
        "run": {"name": name, "seed": 5},
        "model": {"family": "gpt3", "precision": "float32"},
        "data": {"source": "python-stdlib", "tokenizer": "bytes", "max_bytes": "1 MB"},
        "optimizer": {"learning_rate": 1e-3, "clip_norm": 1.0},
    }
    merged = {table: defaults.get(table, {}) | tables.get(table, {}) for table in defaults | tables}
    lines = list[str]()
    for table, keys in merged.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"
