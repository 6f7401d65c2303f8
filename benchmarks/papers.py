"""What the founding papers claim, measured: their figure and ours, a row each, in one table.

    python benchmarks/papers.py --rows lines killed --deadline 1200 --json papers.json

Atom: arXiv 2403.10504; AxoNN: arXiv 2110.13005. docs/papers.md says what each row shows, what is
real in it and what is asleep. Rows on lines of their own need root, `ip` and `tc`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import papers_alone
import papers_optimizer
import papers_order
import papers_swarm
from sides import machine, publish

Result = dict[str, Any]
"""Of one case: `case`, `ours` and `theirs` are for the table; what else is measured is for the
JSON. `theirs` is the paper's figure, or NOT_GIVEN."""
Row = Callable[[argparse.Namespace], Iterable[Result]]
"""What it yields is written down at once."""
NOT_GIVEN = "not given here"

ROWS: Mapping[str, Row] = {
    **papers_swarm.ROWS, **papers_alone.ROWS, **papers_optimizer.ROWS, "order": papers_order.order
}  # fmt: skip


def main() -> None:
    options = _options()
    began, results, left = time.monotonic(), list[Result](), list[str]()
    body = {"benchmark": "papers", "results": results, "left": left, "machine": machine()}
    for name in options.rows:
        for result in ROWS[name](options):
            results.append({"row": name, **result})
            sys.stderr.write(f"{name}, {result['case']}: {result['ours']}\n")
            if options.json:
                options.json.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
            if options.deadline and time.monotonic() - began > options.deadline:
                left += options.rows[options.rows.index(name) :]
                break
        if left:
            break
    cells = [[result[key] for key in ("row", "case", "ours", "theirs")] for result in results]
    publish(["row", "case", "ours", "the paper's"], cells, body)
    for name in left:
        sys.stderr.write(f"{name}: cut off at the deadline\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", choices=ROWS, nargs="+", default=list(ROWS))
    parser.add_argument("--deadline", type=float, help="seconds; nothing begins after them")
    parser.add_argument("--json", type=Path, help="rewritten after every result")
    papers_swarm.add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
