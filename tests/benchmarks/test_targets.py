"""Targets of the swap benchmark lie close to the planner's estimate for an H200."""

import math
from functools import cache

import pytest
import torch

from atom.optim.adamw import AdamW
from atom.plan.choice import HostStep
from atom.plan.footprint import Footprint
from atom.plan.memory import PLANNED_SHARE
from atom.swap.host_store import beside_bytes
from atom.swap.state_form import StateForm
from atom.training.run_optimizer import ReplicaTerms
from benchmarks.plan.bound_share import MOST_MICRO_BATCHES, STEPS
from benchmarks.shared.planner import Planner, graph_of, profile_of
from benchmarks.swap.cases import BY_NAME, CASES, Case, Kind, Target
from benchmarks.swap.sides import BOUND, MEMORY

CARD, NARROW = "h200", torch.bfloat16
SLACK = 1.1
RECKONED = [f"speed beside {MEMORY}", f"speed beside {BOUND}", "busy", "step_s"]
"""Figures that the planner estimates; DeepSpeed's are not among them."""
TARGETS = [
    (case.name, target)
    for case in CASES
    if case.kind is Kind.STEPS and case.trained is None  # else as the case says, not as planned
    for target in case.targets
    if target.figure in RECKONED
]


@cache
def foretold(name: str) -> tuple[float, float]:
    """Return seconds of a step that only computes, and of the planned step."""
    case = BY_NAME[name]
    graph, profile = graph_of(case.size), profile_of(case.size, CARD)
    step, trained = _step(case), 0
    if case.gradients == "float32":
        trained = math.ceil(_kept_bytes(case))
    wanted, leaving = case.micro_batches * case.sequences, _gradients(case).itemsize
    most = min(wanted, MOST_MICRO_BATCHES)
    assert case.gpu_bytes is not None
    choice = Planner(graph, torch.device("cuda"), most, leaving, trained).choose(
        profile, int(case.gpu_bytes * PLANNED_SHARE)
    )
    pieces = choice.cut.pieces
    once_s = sum(piece.forward_s + piece.backward_s for piece in pieces)
    bound_s = wanted * (once_s + sum(piece.forward_s for piece in pieces[:-1]))
    passes = math.ceil(wanted / choice.micro_batches)
    return bound_s, choice.passes_s(passes, step, norm=True)


def _gradients(case: Case) -> torch.dtype:
    return torch.float32 if case.gradients == "float32" else NARROW


def _kept_bytes(case: Case) -> float:
    """Return bytes per parameter in all arenas."""
    layout = graph_of(case.size).layout
    form = StateForm(case.layout)
    terms = ReplicaTerms(layout, NARROW, AdamW(), form, _gradients(case))
    return Footprint.of(terms, 0).host.total_bytes / layout.total_elements


def _step(case: Case) -> HostStep:
    """Return the host's step: it reads and writes all arenas, but only reads the gradient and only
    writes the copy."""
    layout = graph_of(case.size).layout
    once = _gradients(case).itemsize
    once += beside_bytes(layout, NARROW, StateForm(case.layout)) // layout.total_elements
    return HostStep(STEPS[CARD].elements_per_s, 2 * _kept_bytes(case) - once)


@pytest.mark.parametrize(("name", "target"), TARGETS, ids=lambda each: getattr(each, "what", each))
def test_targets_follow_from_the_planners_arithmetic(name: str, target: Target) -> None:
    bound_s, step_s = foretold(name)
    reckoned = step_s if target.at_most else bound_s / step_s
    most, least = (SLACK, 1.0) if target.at_most else (1.0, 1 / SLACK)
    assert least * reckoned <= target.limit <= most * reckoned
