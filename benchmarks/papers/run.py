"""Claims of the founding papers, measured: their figure and ours, one row per claim.

    python -m benchmarks.papers.run --rows lines killed --deadline 1200 --json papers.json
    python -m benchmarks.papers.run --rows gpu-time

Atom: arXiv 2403.10504; AxoNN: arXiv 2110.13005. docs/papers.md names the real and the sleeping
parts of each row. Rows on lines of their own need root, `ip` and `tc`.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from benchmarks.papers import buckets, gpu_time, lines
from benchmarks.papers.all_reduce import exchanges
from benchmarks.papers.memory import memory
from benchmarks.papers.order import order
from benchmarks.papers.result import Result
from benchmarks.papers.same_loss import same_loss
from benchmarks.shared.program import parser_of, publish, say, to_json

Row = Callable[[argparse.Namespace], Iterable[Result]]
"""Function that yields the results of a row; each is written down at once."""
ROWS: Mapping[str, Row] = {
    **lines.ROWS, **gpu_time.ROWS, "memory": memory, "all-reduce": exchanges,
    "same-loss": same_loss, **buckets.ROWS, "order": order,
}  # fmt: skip
COLUMNS = {"row": "", "case": "", "ours": "", "theirs": ""}


def main() -> None:
    parser = parser_of(
        __doc__,
        rows={"choices": ROWS, "nargs": "+", "default": list(ROWS)},
        deadline={"type": float, "default": float("inf"), "help": "seconds; later rows are left"},
        json={"type": Path, "help": "file, rewritten after every result"},
        cases={
            "type": lines.case_of, "nargs": "+", "default": [*map(lines.case_of, lines.CASES)],
            "help": "model:nodes:Mbit/s (10000: unshaped); `gpu-time` takes the models only",
        },
    )  # fmt: skip
    options = parser.parse_args()
    ends_at, results = time.monotonic() + options.deadline, list[Result]()
    for name, found in ((row, each) for row in options.rows for each in ROWS[row](options)):
        results.append({"row": name, **found})
        say(f"{name}, {found['case']}: {found['ours']}")
        if options.json:
            options.json.write_text(to_json("papers", rows=results), encoding="utf-8")
        if time.monotonic() > ends_at:
            say(f"out of time in row {name}")
            break
    publish("papers", results, COLUMNS)


if __name__ == "__main__":
    main()
