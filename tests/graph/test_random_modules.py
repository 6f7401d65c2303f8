"""Random modules, cuts and arrangements always give the bits of the plain module.

A longer run: `ATOM_CHAOS_MODULES=2000 pytest tests/graph/test_random_modules.py`, with another
`ATOM_CHAOS_SEED`.
"""

import os
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from swapped import CUTS, assert_equal, eager, frozen_in, plain, swapped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from traced_modules import legal_ends

from atom.graph.ir import Program
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.swap.schedule import Arrangement

WIDTH, PLACES, ROWS = 8, 3, 4

Step = Callable[["RandomBlock", Tensor, list[Tensor]], Tensor]
"""Function that returns the next hidden state [rows, places, width].

Its arguments are the block, the present hidden state, and all earlier ones.
"""


def _linear(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    return block.first(hidden)


def _linear_again(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    return block.first(torch.tanh(block.first(hidden)))


def _tied(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    return hidden @ block.shared.weight + block.shared.bias


def _norm(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    return block.norm(hidden) * block.scale


def _frozen(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    return hidden + F.linear(hidden, block.fixed) * block.table


def _activation(_: "RandomBlock", hidden: Tensor, __: list[Tensor]) -> Tensor:
    return F.silu(F.gelu(hidden, approximate="tanh") + 1.0)


def _in_place_activation(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    return F.relu_(block.first(hidden)) + 0.125


def _in_place_views(_: "RandomBlock", hidden: Tensor, __: list[Tensor]) -> Tensor:
    changed = hidden.clone()
    changed[..., :2].mul_(2.0)
    changed.view(-1, WIDTH)[1::2] += 1.0
    changed.transpose(0, 1)[0, :, 3] = hidden[:, 1, 4]
    return changed


def _written_into(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    into = torch.zeros(ROWS, PLACES, WIDTH)
    into[:, 1:] = block.first(hidden)[:, :-1]
    return into + hidden


def _dropout(_: "RandomBlock", hidden: Tensor, __: list[Tensor]) -> Tensor:
    return F.dropout(hidden, 0.25)


def _dropout_in_place(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    return F.dropout(block.first(hidden), 0.25, inplace=True)


def _noise(_: "RandomBlock", hidden: Tensor, __: list[Tensor]) -> Tensor:
    return hidden + 0.1 * torch.randn_like(hidden) * torch.rand(PLACES, 1)


def _skip(_: "RandomBlock", hidden: Tensor, before: list[Tensor]) -> Tensor:
    return hidden + before[len(before) // 2]


def _gate(_: "RandomBlock", hidden: Tensor, before: list[Tensor]) -> Tensor:
    return hidden * torch.sigmoid(before[0]) + before[-1].detach()


def _concatenated(block: "RandomBlock", hidden: Tensor, before: list[Tensor]) -> Tensor:
    return block.second(torch.cat([hidden, before[len(before) // 3]], -1))


def _parts(_: "RandomBlock", hidden: Tensor, __: list[Tensor]) -> Tensor:
    left, right = hidden.chunk(2, -1)
    first, *rest = torch.unbind(right, 1)
    return torch.cat([left + first.unsqueeze(1), right * rest[-1].unsqueeze(1)], -1)


def _ranked(_: "RandomBlock", hidden: Tensor, __: list[Tensor]) -> Tensor:
    values, places = hidden.topk(3, dim=-1)
    return hidden.scatter(-1, places, values.flip(-1)) + hidden.sort(-1).values


def _attention(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    heads = block.second(torch.cat([hidden, hidden], -1)).view(ROWS, PLACES, 2, 4)
    query = heads.transpose(1, 2)
    mixed = F.scaled_dot_product_attention(query, query, query, dropout_p=0.1, is_causal=True)
    return hidden + mixed.transpose(1, 2).reshape(hidden.shape)


def _masked(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    scores = block.first(hidden) @ hidden.transpose(1, 2)
    mask = torch.ones(PLACES, PLACES).tril().bool()
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights @ hidden


def _without_gradient(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    with torch.no_grad():
        mean = block.first(hidden).mean(-1, keepdim=True)
    return hidden - mean.expand_as(hidden)


def _checkpointed(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    def inner(value: Tensor) -> Tensor:
        return F.dropout(torch.tanh(block.first(value)), 0.25)

    result: Tensor = checkpoint(inner, hidden, use_reentrant=False)
    return result


def _lower_precision(block: "RandomBlock", hidden: Tensor, _: list[Tensor]) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = block.first(hidden)
    return hidden + low.float()


def _turned(_: "RandomBlock", hidden: Tensor, __: list[Tensor]) -> Tensor:
    turned = hidden.permute(2, 0, 1).reshape(WIDTH, -1).t()
    return torch.einsum("ij,kj->ik", turned, turned).softmax(0)[:, :WIDTH].reshape(hidden.shape)


def _summed(_: "RandomBlock", hidden: Tensor, __: list[Tensor]) -> Tensor:
    return hidden.cumsum(1) / (1 + torch.arange(PLACES)[:, None]) + hidden.amax(-1, keepdim=True)


STEPS: tuple[Step, ...] = (
    _linear, _linear_again, _tied, _norm, _frozen, _activation, _in_place_activation,
    _in_place_views, _written_into, _dropout, _dropout_in_place, _noise, _skip, _gate,
    _concatenated, _parts, _ranked, _attention, _masked, _without_gradient, _checkpointed,
    _lower_precision, _turned, _summed,
)  # fmt: skip


class RandomBlock(nn.Module):
    """Block of a few steps. Another block contains `shared`, too."""

    table: Tensor

    def __init__(self, steps: list[Step], shared: nn.Linear) -> None:
        super().__init__()
        self.steps = steps
        self.shared = shared
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.fixed = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH, requires_grad=False)
        self.register_buffer("table", torch.randn(WIDTH))

    def forward(self, hidden: Tensor, before: list[Tensor]) -> Tensor:
        for step in self.steps:
            before.append(hidden)
            hidden = step(self, hidden, before)
        return hidden


class RandomModule(nn.Module):
    """Module of random blocks; one block is called twice, and all blocks share one weight."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.table = nn.Embedding(16, WIDTH)
        shared = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            RandomBlock(draw.choices(STEPS, k=draw.randint(1, 4)), shared)
            for _ in range(draw.randint(1, 4))
        )
        self.again = draw.random() < 0.3
        self.tied = draw.random() < 0.5

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        hidden, labels = hidden.squeeze(0), labels.squeeze(0)
        before = [hidden]
        hidden = hidden + self.table(labels)
        for block in [*self.blocks, *([self.blocks[0]] if self.again else [])]:
            hidden = block(hidden, before)
        if self.tied:
            logits = hidden @ self.table.weight.t()
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=3)
        return (hidden - before[-1]).square().mean() + hidden.mean()


def random_batch(seed: int) -> dict[str, Tensor]:
    """Return a batch of one sequence with all rows.

    The engine weights gradients by the number of sequences. Four times a subnormal number would not
    be exact.
    """
    generator = torch.Generator().manual_seed(seed)
    return {
        "hidden": torch.randn(1, ROWS, PLACES, WIDTH, generator=generator),
        "labels": torch.randint(0, 16, (1, ROWS, PLACES), generator=generator),
    }


# --- tests ---

MODULES = int(os.environ.get("ATOM_CHAOS_MODULES", "8"))
FIRST_SEED = int(os.environ.get("ATOM_CHAOS_SEED", "0"))


def random_cut(graph: Graph, draw: random.Random) -> Program:
    legal = legal_ends(graph)
    ends = sorted(draw.sample(legal, draw.randint(0, len(legal))))
    return build_program(graph, ends=[*ends, len(graph.calls)])


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
