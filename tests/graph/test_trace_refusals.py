"""Models that cannot be traced faithfully are refused by name; tracing leaves no traces behind."""

import random

import numpy
import pytest
import torch
from torch import nn
from traced_modules import Buffers, LearnedBias, TiedGPT, hidden_states, tokens_and_targets
from untraceable_modules import REFUSED, TRACEABLE, Collects, CountsSteps, RemembersShapes, Two

from atom.base.errors import ModelError
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.verify import verify_against_eager


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ModelError, match=message) as refusal:
        trace(make(), hidden_states())
    assert refusal.value.hint
    assert "\n" not in str(refusal.value)
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("name", TRACEABLE)
def test_not_refused_and_right(name: str) -> None:
    torch.manual_seed(0)
    model = TRACEABLE[name]()
    program = build_program(trace(model, hidden_states()))
    verify_against_eager(model, program, hidden_states(1))


def test_python_state_is_left_as_it_was() -> None:
    counter, cache, collector = CountsSteps(), RemembersShapes(), Collects()
    for model in (counter, collector):
        with pytest.raises(ModelError):
            trace(model, hidden_states())
    trace(cache, hidden_states())
    assert (counter.step, cache.longest, cache.tables, collector.losses) == (0, 0, {}, [])


def test_a_caller_s_own_regions_are_no_part_of_the_model() -> None:
    expected = trace(Two(), hidden_states()).graph_hash
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert trace(Two(), hidden_states()).graph_hash == expected


def test_the_generators_are_left_as_they_were() -> None:
    python, numbers = random.getstate(), numpy.random.get_state()[1].tolist()
    for name in ("python randomness", "numpy randomness"):
        with pytest.raises(ModelError):
            trace(REFUSED[name][0](), hidden_states())
    assert random.getstate() == python
    assert numpy.random.get_state()[1].tolist() == numbers


def test_evaluation_mode_is_a_graph_of_its_own() -> None:
    model = LearnedBias(dropout=0.1)
    evaluated = trace(model, tokens_and_targets(), training=False)
    assert model.training
    assert evaluated.graph_hash != trace(model, tokens_and_targets()).graph_hash
    verify_against_eager(model, build_program(evaluated), tokens_and_targets(1), training=False)


def test_the_guards_are_gone_afterwards() -> None:
    model = REFUSED["function that is handed a module"][0]()
    hidden = hidden_states()["hidden"]
    with pytest.raises(ModelError):
        trace(model, {"hidden": hidden})
    model(hidden).backward()
    assert model.get_parameter("layer.weight").grad is not None
    assert model.get_parameter("layer.weight").grad.abs().sum() > 0


def test_a_box_without_memory_is_no_fault_of_the_model() -> None:
    class Full(nn.Linear):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            raise MemoryError

    with pytest.raises(MemoryError):
        trace(Full(2, 2), {"tokens": torch.zeros(2, 2)})


def test_wrong_batches() -> None:
    model, batch = TiedGPT(), tokens_and_targets()
    with pytest.raises(ModelError, match="targets"):
        trace(model, {"tokens": batch["tokens"]})
    with pytest.raises(ModelError, match="labels"):
        trace(model, {**batch, "labels": batch["targets"]})
    with pytest.raises(ModelError, match="targets is NoneType"):
        trace(model, {"tokens": batch["tokens"], "targets": None})  # type: ignore[dict-item]


def test_buffers_without_values_and_mixed_dtypes() -> None:
    with pytest.raises(ModelError, match="buffer scale is on the meta device"):
        trace(Buffers().to("meta"), hidden_states())
    mixed = TiedGPT()
    mixed.norm.double()
    mixed.forward = lambda tokens, targets: mixed.tokens(tokens).sum() + mixed.norm.weight.sum()  # type: ignore[method-assign, assignment]
    with pytest.raises(ModelError, match=r"norm\.weight is torch.float64"):
        trace(mixed, tokens_and_targets())


def test_meta_gives_the_same_graph() -> None:
    real, meta = TiedGPT(dropout=0.1), TiedGPT(dropout=0.1).to("meta")
    # Moving to another device unties nothing here: the head reads the embedding's own parameter.
    first, second = trace(real, tokens_and_targets(0)), trace(meta, tokens_and_targets(1))
    assert first.graph_hash == second.graph_hash
    assert first.layout == second.layout


def test_the_hash_sees_what_matters_and_not_the_names() -> None:
    def graph_hash(model: nn.Module) -> str:
        return trace(model, tokens_and_targets()).graph_hash

    base = graph_hash(TiedGPT(layers=2))
    assert graph_hash(TiedGPT(layers=2)) == base
    renamed = TiedGPT(layers=2)
    renamed.blocks[0].ascend = renamed.blocks[0].up
    assert graph_hash(renamed) == base
    frozen = TiedGPT(layers=2)
    frozen.blocks[0].up.bias.requires_grad_(False)
    tied = TiedGPT(layers=2)
    tied.blocks[1].up.weight = tied.blocks[0].up.weight
    others = [
        TiedGPT(layers=1),
        TiedGPT(layers=2, dropout=0.1),
        TiedGPT(layers=2).bfloat16(),
        frozen,
        tied,
    ]
    assert len({base, *map(graph_hash, others)}) == len(others) + 1


def test_constants_values_are_part_of_the_hash() -> None:
    changed = Buffers()
    changed.mask[0, 1] = True
    hashes = {trace(model, hidden_states()).graph_hash for model in (Buffers(), changed)}
    assert len(hashes) == 2
