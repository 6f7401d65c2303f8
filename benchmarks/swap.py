"""What swapping costs: Atom beside plain PyTorch in device memory, DeepSpeed and FSDP2.

Every side trains the same GPT-3 (embedding, blocks, tied head, loss, clipping, AdamW) on the same
random tokens, in a process of its own, in turn with Atom's. Each case has its targets, printed
beside the figures; docs/performance.md says what a side is exactly. Needs torch and a C compiler;
DeepSpeed is measured where it is installed. Ends with 0 if every target of the cases asked for was
met (at toy size nothing is judged), else with 1.

    python benchmarks/swap.py                                   # the tiny case, on this CPU
    python benchmarks/swap.py --device cuda --case all --deadline 570 --json swap.json
    python benchmarks/swap.py --device cuda --case 2.7b-32k --gpu-memory "8 GiB" --trace swap.trace
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a checkout, nothing installed

from sides import machine, positive
from swap_cases import BY_NAME, CASES, OURS, TINY_CASE, Case
from swap_company import Company, Deadline
from swap_measure import Measured, Options, measure
from swap_setup import PRECISIONS
from swap_sides import SIDES
from swap_table import MET, markdown, side_rows, target_rows, text, to_json
from swap_table import SIDES as SIDE_TITLES
from swap_table import TARGETS as TARGET_TITLES

from atom.base.build_kernels import compile_kernels
from atom.base.errors import MismatchError, UserError
from atom.base.units import parse_bytes
from atom.swap.host_kernels import LIBRARY, SOURCE, load

ALL = "all"
RIVALS = [side for side in SIDES if side not in OURS]
PUTTING_AWAY_S = 10.0
"""Before the deadline: time to end the sides and to write the tables."""


def main() -> int:
    arguments = _arguments()
    cases = _cases(arguments)
    options = _options(arguments)
    _require_kernels()
    deadline = Deadline.after(
        None if arguments.deadline is None else arguments.deadline - PUTTING_AWAY_S
    )
    company, done = Company(deadline), list[Measured]()
    try:
        for case in cases:
            done.append(measure(case, company, options))
            _say(text(side_rows(done[-1]), SIDE_TITLES))
            _write(arguments, done)
            if done[-1].out_of_time:
                break
    finally:
        company.close()
    return _publish(arguments, done, cases[len(done) :])


def _publish(arguments: argparse.Namespace, done: list[Measured], left: list[Case]) -> int:
    """Tables on stderr, for people; JSON on stdout, for programs. The exit code."""
    _say("\n" + text([row for each in done for row in side_rows(each)], SIDE_TITLES))
    rows = [row for each in done for row in target_rows(each, _judged(arguments))]
    rows += [[case.name, "", "", "", "not measured: out of time"] for case in left]
    if rows:
        _say("\n" + text(rows, TARGET_TITLES))
    sys.stdout.write(json.dumps(_body(arguments, done), indent=2) + "\n")
    if arguments.markdown is not None:
        Path(arguments.markdown).write_text(markdown(rows, TARGET_TITLES), encoding="utf-8")
    return int(_judged(arguments) and any(row[-1] != MET for row in rows))


def _write(arguments: argparse.Namespace, done: list[Measured]) -> None:
    """After every case: whoever stops the program has what it got so far."""
    if arguments.json is not None:
        Path(arguments.json).write_text(
            json.dumps(_body(arguments, done), indent=2), encoding="utf-8"
        )


def _body(arguments: argparse.Namespace, done: list[Measured]) -> dict[str, Any]:
    judged = _judged(arguments)
    return {
        "benchmark": "swap",
        "machine": machine(),
        "device": arguments.device,
        "precision": arguments.precision,
        "toy": not judged,
        "cases": [to_json(measured, judged) for measured in done],
    }


def _judged(arguments: argparse.Namespace) -> bool:
    return bool(arguments.device == "cuda" and not arguments.toy)


def _cases(arguments: argparse.Namespace) -> list[Case]:
    names = arguments.case or ["tiny"]
    chosen = list(CASES) if ALL in names else [BY_NAME[name] for name in names]
    return chosen if _judged(arguments) else [case.as_toy() for case in chosen]


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        arguments.device,
        arguments.precision,
        arguments.runs,
        arguments.steps,
        arguments.gpu_memory,
        arguments.host_memory,
        None if arguments.sides is None else tuple(arguments.sides),
        None if arguments.trace is None else str(Path(arguments.trace).absolute()),
    )


def _story() -> str:
    """Cases with their targets, in the order in which they run."""
    lines = ["cases, and their targets on one H200 with 16 cores:"]
    for case in CASES:
        lines.append(f"  {case.name}: {case.about}")
        lines += [f"      {target.what} {target.text}" for target in case.targets]
    return "\n".join([*lines, f"  {TINY_CASE.name}: {TINY_CASE.about}"])


def _require_kernels() -> None:
    """A plain checkout has not been installed, so nobody has compiled them yet."""
    try:
        load(LIBRARY)
    except MismatchError:
        compile_kernels(SOURCE, LIBRARY)


def _say(words: str) -> None:
    sys.stderr.write(words)
    sys.stderr.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=_story(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--case", nargs="+", choices=[ALL, *BY_NAME], metavar="CASE",
        help="tiny unless given; all: each of those below",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu",
        help="cpu: every case at toy size, speeds mean nothing",
    )  # fmt: skip
    parser.add_argument("--toy", action="store_true", help="cases at toy size, as on a CPU")
    parser.add_argument("--precision", choices=PRECISIONS, help="float32 on cpu, else bfloat16")
    parser.add_argument(
        "--sides", nargs="*", choices=RIVALS, metavar="SIDE",
        help=f"of the case's rivals, these: {', '.join(RIVALS)}; all unless given",
    )  # fmt: skip
    parser.add_argument(
        "--gpu-memory", type=parse_bytes, help="Atom's cap, \"6 GB\"; the case's own unless given"
    )
    parser.add_argument(
        "--host-memory", type=parse_bytes, help='"125 GiB", for a host that does not tell all'
    )
    parser.add_argument(
        "--runs", type=positive, default=5, help="in turn with each rival; 5 unless given"
    )
    parser.add_argument("--steps", type=positive, help="per run; the case's own unless given")
    parser.add_argument("--deadline", type=float, help="seconds; what is not done by then is not")
    parser.add_argument("--trace", help="Chrome trace of Atom's last run")
    parser.add_argument("--json", help="file, rewritten after every case")
    parser.add_argument("--markdown", help="file for the table of targets")
    arguments = parser.parse_args()
    if arguments.precision is None:
        arguments.precision = "float32" if arguments.device == "cpu" else "bfloat16"
    for file in filter(None, (arguments.trace, arguments.json, arguments.markdown)):
        if not Path(file).absolute().parent.is_dir():
            parser.error(f"there is no folder for {file}")  # before hours are spent
    return arguments


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as problem:
        sys.exit(f"error: {problem.message}\nhint:  {problem.hint}")
