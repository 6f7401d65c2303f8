"""Measurement of a case: order and number of the runs, and the figures that follow."""

import statistics
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.shared.program import Timing
from benchmarks.swap.cases import GB, PASSES, Case, Kind
from benchmarks.swap.processes import Answer, Child, Company, OutOfTime, SideFailed
from benchmarks.swap.setup import Setup
from benchmarks.swap.sides import ATOM, EXACTNESS, FSDP, RATES

ENOUGH_S = 60.0
"""Time after which a pairing is not run again."""


@dataclass
class SideResult:
    """Results of one side in one case."""

    ready_s: float
    tokens: int
    """Tokens per step."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def step(self) -> Timing:
        """Seconds per step: the mean of each run."""
        return Timing(tuple(statistics.mean(a.seconds) for a in self.answers if a.seconds))

    @property
    def memory(self) -> dict[str, int]:
        """Largest memory of all runs."""
        keys = self.answers[-1].memory
        return {key: max(answer.memory[key] for answer in self.answers) for key in keys}

    @property
    def facts(self) -> dict[str, Any]:
        return self.answers[-1].facts if self.answers else {}


@dataclass
class Measured:
    """Results of a case by side, reasons of sides without a result, and the figures."""

    case: Case
    sides: dict[str, SideResult] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    out_of_time: bool = False


def measure(case: Case, company: Company, options: Namespace) -> Measured:
    """Measure a case; a side that fails is named in the result, and a deadline ends the case."""
    measured = Measured(case)
    measuring: dict[Kind, Callable[[Measured, Company, Namespace], None]] = {
        Kind.STEPS: _steps,
        Kind.ACCUMULATE: _accumulate,
        Kind.EXACTNESS: _exactness,
        Kind.RATES: _rates,
    }
    try:
        measuring[case.kind](measured, company, options)
    except OutOfTime:
        measured.out_of_time = True
    _figures(measured)
    return measured


def _steps(measured: Measured, company: Company, options: Namespace) -> None:
    """Run Atom beside each rival in turn, then each rival that fills the host by itself."""
    rivals = _rivals(measured.case, options)
    beside = [rival for rival in rivals if rival != FSDP]
    for rival in beside or [None]:
        pair = {ATOM: _atom(measured.case, options)}
        if rival is not None:
            pair[rival] = _other(measured.case, options, rival)
        _pairing(measured, company, options, pair)
    for rival in rivals:
        if rival == FSDP:
            setup = _other(measured.case, options, rival)
            _pairing(measured, company, options, {rival: setup})


def _accumulate(measured: Measured, company: Company, options: Namespace) -> None:
    case = measured.case
    setup = _atom(case, options)
    for label, passes in (("atom, 1 pass", 1), (f"atom, {PASSES} passes", PASSES)):
        _pairing(measured, company, options, {label: setup}, case.micro_batches * passes)
    one, many = (measured.sides.get(f"atom, {n}") for n in ("1 pass", f"{PASSES} passes"))
    if one is not None and many is not None:
        ratio = many.step.median_s / one.step.median_s / PASSES
        measured.figures[f"{PASSES} passes to 1"] = ratio


def _exactness(measured: Measured, company: Company, options: Namespace) -> None:
    case = measured.case
    for precision in (
        ("float32", "bfloat16") if case.size != "tiny" else (_precision(case, options),)
    ):
        setup = Setup(
            EXACTNESS, case.size, case.sequences, precision, options.device,
            micro_batches=case.micro_batches,
        )  # fmt: skip
        label = f"{EXACTNESS}, {precision}"
        _pairing(measured, company, options, {label: setup}, runs=1)
        if label in measured.sides:
            facts = measured.sides[label].facts
            measured.figures[f"equal steps, {precision}"] = facts["equal_steps"] / facts["steps"]


def _rates(measured: Measured, company: Company, options: Namespace) -> None:
    case = measured.case
    setup = Setup(RATES, case.size, case.sequences, _precision(case, options), options.device)
    _pairing(measured, company, options, {RATES: setup}, steps=0, runs=1)
    if RATES in measured.sides:
        facts = measured.sides[RATES].facts
        for figure, key in (("adamw_g_per_s", "adamw_per_s"),
                            ("link_gb_per_s", "link_meanwhile_bytes_per_s")):  # fmt: skip
            if key in facts:
                measured.figures[figure] = facts[key] / GB


def _pairing(
    measured: Measured,
    company: Company,
    options: Namespace,
    setups: dict[str, Setup],
    micro_batches: int | None = None,
    steps: int | None = None,
    runs: int | None = None,
) -> None:
    """Run these sides in turn, the order alternating; leave out a side that fails."""
    case = measured.case
    children = _started(measured, company, setups)
    wanted = case.steps if options.steps is None else options.steps
    asked = case.micro_batches if micro_batches is None else micro_batches
    tokens, spent_s = case.tokens // case.micro_batches * asked, 0.0
    for run in range(options.runs if runs is None else runs):
        for label, child in list(children.items())[:: 1 if run % 2 else -1]:
            try:
                answer = child.run(asked, wanted if steps is None else steps)
            except OutOfTime:
                raise
            except SideFailed as reason:
                measured.missing[label] = str(reason)
                company.children.pop(setups[label]).end()
                del children[label]
                continue
            result = measured.sides.setdefault(label, SideResult(child.ready_s, tokens))
            result.answers.append(answer)
            spent_s += sum(answer.seconds)
        if spent_s > ENOUGH_S:
            break


def _started(measured: Measured, company: Company, setups: dict[str, Setup]) -> dict[str, Child]:
    """Return the children that could be started."""
    company.keep(*setups.values())
    children = {}
    for label, setup in setups.items():
        try:
            children[label] = company.child(setup)
        except OutOfTime:
            raise
        except SideFailed as reason:
            measured.missing[label] = str(reason)
    return children


def _figures(measured: Measured) -> None:
    """Compute speeds beside the rivals (above one: Atom is faster) and the other figures."""
    for rival in measured.case.rivals:
        if ATOM in measured.sides and rival in measured.sides:
            speed = measured.sides[rival].step.median_s / measured.sides[ATOM].step.median_s
            measured.figures[f"speed beside {rival}"] = speed
    if ATOM in measured.sides:
        result = measured.sides[ATOM]
        measured.figures["step_s"] = result.step.median_s
        measured.figures["ready_s"] = result.ready_s
        measured.figures["host_gb"] = result.memory["host_bytes"] / GB
        measured.figures["busy"] = statistics.mean(a.facts["busy"] for a in result.answers)
        if "gpu_reserved_bytes" in result.memory:
            measured.figures["gpu_gb"] = result.memory["gpu_reserved_bytes"] / GB


def _rivals(case: Case, options: Namespace) -> list[str]:
    return [r for r in case.rivals if options.sides is None or r in options.sides]


def _precision(case: Case, options: Namespace) -> str:
    """Return the precision; split weights have bfloat16 halves."""
    on_cpu = options.device == "cpu" and case.layout == "exact"
    return "float32" if on_cpu else "bfloat16"


def _atom(case: Case, options: Namespace, cap: int | None = None) -> Setup:
    return Setup(
        ATOM, case.size, case.sequences, _precision(case, options), options.device,
        case.micro_batches, options.gpu_memory or cap or case.gpu_bytes, case.layout,
        case.gradients, options.host_memory, case.trained,
    )  # fmt: skip


def _other(case: Case, options: Namespace, rival: str) -> Setup:
    """Return the setup of a rival.

    Only sides that accumulate by themselves depend on the number of micro-batches: the others are
    kept from one case to the next.
    """
    counted = case.micro_batches if rival == FSDP else 1
    precision = _precision(case, options)
    return Setup(rival, case.size, case.sequences, precision, options.device, counted)
