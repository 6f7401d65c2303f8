"""Checkpoints in a model keep its bits and reduce its memory at every cut."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint
from swapped import assert_equal, eager, finest, swapped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from traced_modules import VOCABULARY, Block, TiedGPT, legal_ends, tokens_and_targets

from atom.base.errors import ModelError
from atom.graph.costs.operations import operation_costs
from atom.graph.layers import layer_ends, layers_of
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.traced import Graph, is_getitem
from atom.graph.verify import verify_against_eager

recomputed = partial(checkpoint, use_reentrant=False)


class ChunkedGPT(TiedGPT):
    """GPT with a tied head that computes its loss in chunks of tokens; the last one is shorter."""

    chunk_tokens = 12

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self._hidden(tokens).flatten(0, 1)
        pairs = zip(
            hidden.split(self.chunk_tokens), targets.flatten().split(self.chunk_tokens), strict=True
        )
        return torch.stack([self._chunk(*pair) for pair in pairs]).sum() / targets.numel()

    def _hidden(self, tokens: Tensor) -> Tensor:
        hidden = self.drop(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for block in self.blocks:
            hidden = block(hidden)
        return self.norm(hidden)

    def _chunk(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return recomputed(self._loss_sum, hidden, targets)

    def _loss_sum(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(hidden, self.tokens.weight)
        return F.cross_entropy(logits.float(), targets, reduction="sum")


class UncheckedGPT(ChunkedGPT):
    """GPT with the same results as `ChunkedGPT`, but without checkpoints."""

    def _chunk(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self._loss_sum(hidden, targets)


class CheckpointedBlock(Block):
    """Block that checkpoints its feed-forward network with dropout, and a part of that network."""

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden), mask)
        return hidden + recomputed(self.feed_forward, self.norm2(hidden))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        widened = recomputed(lambda given: F.gelu(self.up(given)), hidden)
        with torch.no_grad():
            scale = 1 / widened.abs().amax(dim=-1, keepdim=True)
        first, second = self.drop(self.down(widened * scale)).chunk(2, dim=-1)
        return torch.cat([second, first], dim=-1)


class CheckpointedGPT(ChunkedGPT):
    """GPT with checkpoints inside blocks, around one whole block, and in the head."""

    def __init__(self) -> None:
        super().__init__(dropout=0.1)
        self.blocks = nn.ModuleList([CheckpointedBlock(0.1), CheckpointedBlock(0.1), Block(0.1)])

    def _hidden(self, tokens: Tensor) -> Tensor:
        hidden = self.drop(self.tokens(tokens))
        for block in self.blocks[:-1]:
            hidden = block(hidden)
        return self.norm(recomputed(self.blocks[-1], hidden))


class OneOfTwoResults(ChunkedGPT):
    """GPT with a checkpointed function that returns two values, one of them without a gradient."""

    def _chunk(self, hidden: Tensor, targets: Tensor) -> Tensor:
        loss, count = recomputed(self._both, hidden, targets)
        return loss * count

    def _both(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self._loss_sum(hidden, targets), (targets < VOCABULARY).sum() / targets.numel()


CHECKPOINTED = {
    "chunks": lambda: ChunkedGPT(dropout=0.1),
    "everywhere": CheckpointedGPT,
    "two results": OneOfTwoResults,
}


# --- tests ---


def inside(graph: Graph) -> list[list[str]]:
    """Return the operators of each span."""
    return [
        [str(call.target._opname) for call in graph.calls[slice(*span)] if not is_getitem(call)]
        for span in graph.recomputed
    ]


def test_a_chunk_of_the_loss_is_a_span() -> None:
    graph = trace(ChunkedGPT(), tokens_and_targets())
    assert inside(graph) == [["linear", "to", "cross_entropy_loss"]] * 3
    for first, end in graph.recomputed:
        assert graph.forbidden_cuts.issuperset(range(first + 1, end))
        assert not graph.forbidden_cuts & {first, end}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in CHECKPOINTED), ("everywhere", torch.bfloat16)],
)
def test_bits_are_those_of_the_model_at_any_cut(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = CHECKPOINTED[name]().to(dtype)
    graph = trace(model, tokens_and_targets())
    last, legal = len(graph.calls), legal_ends(graph)
    for ends in ([last], layer_ends(layers_of(graph)), [*legal[::5], last], [*legal, last]):
        verify_against_eager(model, build_program(graph, ends=ends), tokens_and_targets(1))


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_bits_of_a_swapped_pass(name: str) -> None:
    torch.manual_seed(0)
    model = CHECKPOINTED[name]()
    program = finest(trace(model, tokens_and_targets()))
    batches, seeds = [tokens_and_targets(1)], [7]
    assert_equal(swapped(model, program, batches, seeds), eager(model, batches, seeds))


def test_random_numbers_are_replayed_only_where_there_are_any() -> None:
    source = build_program(trace(CheckpointedGPT(), tokens_and_targets())).source
    block, head = source.partition("class Head(")[::2]
    assert "preserve_rng_state" not in block
    assert head.count("preserve_rng_state = False") == 3


def test_equal_chunks_are_one_class() -> None:
    source = build_program(trace(ChunkedGPT(), tokens_and_targets())).source
    lines = source.splitlines()
    assert [line for line in lines if line.startswith("class HeadRecomputed")] == [
        "class HeadRecomputed(nn.Module):",
        "class HeadRecomputed_2(nn.Module):",
    ]
    assert source.count("checkpoint.checkpoint(") == 3


def test_what_is_recomputed_is_part_of_the_graphs_identity() -> None:
    graphs = [trace(make(), tokens_and_targets()) for make in (ChunkedGPT, UncheckedGPT)]
    assert graphs[0].graph_hash != graphs[1].graph_hash
    assert [c.target for c in graphs[0].calls] == [c.target for c in graphs[1].calls]


def test_checkpoints_around_whole_layers_are_left_out() -> None:
    torch.manual_seed(0)
    model = TiedGPT(dropout=0.1)
    plain = trace(model, tokens_and_targets())
    for number in range(3):
        block = model.blocks[number]
        block.forward = lambda hidden, call=block.forward: recomputed(call, hidden)
    graph = trace(model, tokens_and_targets())
    assert graph.recomputed == ()
    assert graph.graph_hash == plain.graph_hash
    verify_against_eager(model, build_program(graph), tokens_and_targets(1))


def test_a_refusal_inside_a_checkpoint_names_the_place() -> None:
    class Looks(ChunkedGPT):
        def _loss_sum(self, hidden: Tensor, targets: Tensor) -> Tensor:
            if hidden.sum() > 0:
                return super()._loss_sum(hidden, targets)
            return hidden.sum()

    with pytest.raises(ModelError, match=r"hidden\.sum\(\) > 0"):
        trace(Looks(), tokens_and_targets())
    assert trace(ChunkedGPT(), tokens_and_targets()).recomputed


def test_seconds_of_the_backward_hold_the_second_forward() -> None:
    batch = tokens_and_targets()
    chunked, whole = (
        operation_costs(trace(make(), batch)).operations for make in (ChunkedGPT, UncheckedGPT)
    )
    chunks = [(a, b) for a, b in zip(chunked, whole, strict=True) if a.backward != b.backward]
    assert len(chunks) == 3 * 2  # `to` has nothing to do in float32
    for repeated, single in chunks:
        assert repeated.backward == (*single.forward, *single.backward)
