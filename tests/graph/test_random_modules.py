"""Random modules, cuts and arrangements always give the bits of the plain module.

A longer run: `ATOM_CHAOS_MODULES=2000 pytest tests/graph/test_random_modules.py`, with another
`ATOM_CHAOS_SEED`.
"""

import os
import random

import pytest
import torch
from random_modules import ROWS, WIDTH, RandomModule, random_batch
from swapped import CUTS, assert_equal, eager, frozen_in, plain, swapped
from torch import nn

from atom.graph.ir import Program
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.swap.schedule import Arrangement

MODULES = int(os.environ.get("ATOM_CHAOS_MODULES", "12"))
FIRST_SEED = int(os.environ.get("ATOM_CHAOS_SEED", "0"))


def random_cut(graph: Graph, draw: random.Random) -> Program:
    last = len(graph.calls)
    legal = [end for end in range(1, last) if end not in graph.forbidden_cuts]
    ends = sorted(draw.sample(legal, draw.randint(0, len(legal))))
    return build_program(graph, ends=[*ends, last])


def random_arrangement(program: Program, draw: random.Random) -> Arrangement:
    parts = range(len(program.sub_models))
    resident = frozenset(part for part in parts if draw.random() < 0.5)
    kept = frozenset(part for part in resident if draw.random() < 0.5)
    return Arrangement(draw.choice([2, 3, 5]), resident, kept)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + MODULES))
def test_a_random_module_cut_at_random(seed: int) -> None:
    draw = random.Random(f"cuts {seed}")
    torch.manual_seed(seed)
    model = RandomModule(seed)
    graph = trace(model, random_batch(seed))
    batch, other = random_batch(seed + 1), random_batch(seed + 2)
    expected = eager(model, [batch], [seed])
    for program in (CUTS["finest"](graph), random_cut(graph, draw)):
        found = plain(model, program, [batch], [seed])
        assert_equal(found, expected, frozen_in(graph))
        arrangement = random_arrangement(program, draw)
        found = swapped(model, program, [batch], [seed], arrangement)
        assert_equal(found, expected, frozen_in(graph))
        several = plain(model, program, [batch, other], [seed, seed + 1])
        found = swapped(model, program, [batch, other], [seed, seed + 1], arrangement)
        assert_equal(found, several, frozen_in(graph))


class Empty(nn.Module):
    """A parameter without elements begins where its neighbour does; float8 has no literals."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.empty(WIDTH, 0))
        self.something = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("table", torch.arange(8.0).to(torch.float8_e4m3fn))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        start = hidden[:, :0] @ self.nothing.t() + hidden * self.table.float()
        loss: torch.Tensor = self.something(start).square().mean()
        return loss


@pytest.mark.parametrize("cut", CUTS)
def test_parameters_without_elements(cut: str) -> None:
    torch.manual_seed(0)
    model, batch = Empty(), {"hidden": torch.randn(ROWS, WIDTH)}
    program = CUTS[cut](trace(model, batch))
    assert_equal(swapped(model, program, [batch], [3]), eager(model, [batch], [3]))
