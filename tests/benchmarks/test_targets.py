"""No target of the swap benchmark is beyond what the planner foretells of an H200, or far below."""

import math
from functools import cache

import pytest
import torch
from foretold import MOST_MICRO_BATCHES, STEPS, graph_of, profile_of
from planned import Planner
from swap_cases import BY_NAME, CASES, Case, Kind, Target
from swap_sides import BOUND, MEMORY

from atom.optim.adamw import AdamW
from atom.plan.choice import HostStep
from atom.plan.footprint import Footprint
from atom.plan.memory import PLANNED_SHARE
from atom.swap.host_store import beside_bytes
from atom.swap.state_form import StateForm
from atom.training.run_optimizer import ReplicaTerms

CARD, NARROW = "h200", torch.bfloat16
SLACK = 1.1
RECKONED = [f"speed beside {MEMORY}", f"speed beside {BOUND}", "busy", "step_s"]
"""Figures. DeepSpeed is not foretold."""
TARGETS = [
    (case.name, target)
    for case in CASES
    if case.kind is Kind.STEPS and case.trained is None  # else as the case says, not as planned
    for target in case.targets
    if target.figure in RECKONED
]


@cache
def foretold(name: str) -> tuple[float, float]:
    """Seconds of a step that computes alone, and of one as planned."""
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
    """Of a parameter, in all arenas."""
    layout = graph_of(case.size).layout
    form = StateForm(case.layout)
    terms = ReplicaTerms(layout, NARROW, AdamW(), form, _gradients(case))
    return Footprint.of(terms, 0).host.total_bytes / layout.total_elements


def _step(case: Case) -> HostStep:
    """It reads and writes all but the gradient, which it reads, and the copy, which it writes."""
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
