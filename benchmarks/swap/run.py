"""Cost of swapping: Atom beside plain PyTorch in device memory, and FSDP2.

Every side trains the same GPT-3 (embedding, blocks, tied head, loss, clipping, AdamW) on the same
random tokens, in a separate process, in turn with Atom's. Each case has targets, printed beside
the figures; docs/performance.md defines each side. Needs torch and a C compiler. On a CPU all cases
have toy size and nothing is judged. The exit code is 0 if every target of the cases was met, else
1.

    python -m benchmarks.swap.run                                   # the tiny case, on this CPU
    python -m benchmarks.swap.run --device cuda --case all --deadline 570 --json swap.json
    python -m benchmarks.swap.run --device cuda --case 2.7b-32k --gpu-memory "8 GiB"
"""

import argparse
import sys
from pathlib import Path

from atom.base.build_kernels import compile_kernels
from atom.base.errors import MismatchError, UserError
from atom.base.units import parse_bytes
from atom.swap.host_kernels import LIBRARY, SOURCE, load
from benchmarks.shared.program import parser_of, positive, say, table, to_json
from benchmarks.swap.cases import BY_NAME, CASES, OURS, TINY_CASE, Case
from benchmarks.swap.measure import Measured, measure
from benchmarks.swap.processes import Company, Deadline
from benchmarks.swap.sides import BUILDERS
from benchmarks.swap.table import (
    MET,
    SIDE_COLUMNS,
    TARGET_COLUMNS,
    case_json,
    markdown,
    side_rows,
    target_rows,
)

ALL = "all"
RIVALS = [side for side in BUILDERS if side not in OURS]
CLEANUP_S = 10.0
"""Time before the deadline to end the sides and to write the tables."""


def main() -> int:
    arguments = _arguments()
    cases = _cases(arguments)
    _require_kernels()
    left_s = None if arguments.deadline is None else arguments.deadline - CLEANUP_S
    company, done = Company(Deadline.after(left_s)), list[Measured]()
    try:
        for case in cases:
            done.append(measure(case, company, arguments))
            say(table(side_rows(done[-1]), SIDE_COLUMNS))
            _write(arguments.json, _json(arguments, done))
            if done[-1].out_of_time:
                break
    finally:
        company.keep()
    say("\n" + table([row for each in done for row in side_rows(each)], SIDE_COLUMNS))
    rows = [row for each in done for row in target_rows(each, _judged(arguments))]
    rows += [
        {"case": case.name, "verdict": "not measured: out of time"} for case in cases[len(done) :]
    ]
    if rows:
        say("\n" + table(rows, TARGET_COLUMNS))
    sys.stdout.write(_json(arguments, done))
    _write(arguments.markdown, markdown(rows))
    return int(_judged(arguments) and any(row["verdict"] != MET for row in rows))


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.write_text(text, encoding="utf-8")


def _json(arguments: argparse.Namespace, done: list[Measured]) -> str:
    judged = _judged(arguments)
    cases = [case_json(measured, judged) for measured in done]
    return to_json("swap", device=arguments.device, toy=not judged, cases=cases)


def _judged(arguments: argparse.Namespace) -> bool:
    return bool(arguments.device == "cuda")


def _cases(arguments: argparse.Namespace) -> list[Case]:
    chosen = list(CASES) if ALL in arguments.case else [BY_NAME[name] for name in arguments.case]
    return chosen if _judged(arguments) else [case.as_toy() for case in chosen]


def _story() -> str:
    """Return the cases with their targets, in the order in which they run."""
    lines = ["cases, and their targets on one H200 with 16 cores:"]
    for case in (*CASES, TINY_CASE):
        lines.append(f"  {case.name}: GPT-3 {case.size}, {case.tokens:,} tokens per step")
        lines += [f"      {target.what} {target.text}" for target in case.targets]
    return "\n".join(lines)


def _require_kernels() -> None:
    """Compile the host kernels if this checkout has not been installed."""
    try:
        load(LIBRARY)
    except MismatchError:
        compile_kernels(SOURCE, LIBRARY)


def _arguments() -> argparse.Namespace:
    cases = [ALL, *BY_NAME]
    parser = parser_of(
        __doc__,
        case={"nargs": "+", "choices": cases, "metavar": "CASE", "default": [TINY_CASE.name]},
        device={"choices": ["cpu", "cuda"], "default": "cpu"},
        sides={"nargs": "*", "choices": RIVALS, "help": "rivals; default: all of the case"},
        gpu_memory={"type": parse_bytes, "help": "Atom's cap, \"6 GB\"; default: the case's"},
        host_memory={"type": parse_bytes, "help": '"125 GiB", if the host understates its memory'},
        runs=5,
        steps={"type": positive, "help": "per run; default: the case's"},
        deadline={"type": float, "help": "seconds after which the program ends"},
        json={"type": _file, "help": "file, rewritten after every case"},
        markdown={"type": _file, "help": "file for the table of targets"},
    )
    parser.epilog = _story()
    return parser.parse_args()


def _file(text: str) -> Path:
    """Return an absolute path in a folder that exists, before hours are spent."""
    path = Path(text).absolute()
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder for {text}")
    return path


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as problem:
        sys.exit(f"error: {problem.message}\nhint:  {problem.hint}")
