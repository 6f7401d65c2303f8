"""What cannot be traced faithfully is refused by name; what can leaves nothing behind."""

import random

import numpy
import pytest
import torch
from torch import nn
from traced_modules import (
    WIDTH,
    Buffers,
    ChangesItsInput,
    DependsOnData,
    DrawsInPython,
    HoldsAParameterAside,
    LargeTable,
    LearnedBias,
    Normalised,
    TiedGPT,
    hidden_states,
    tokens_and_targets,
)
from untraceable_modules import (
    TRACEABLE,
    ChangesAWeight,
    Checkpointed,
    ChoosesARegion,
    Collects,
    ComplexWeights,
    CountsSteps,
    FindsATensor,
    HandsAModule,
    HoldsATensor,
    KeepsATensor,
    Leaves,
    LosesARegion,
    MakesALayer,
    NumpyRandomness,
    OneNameForTwo,
    OwnGenerator,
    ReadsData,
    RemembersShapes,
    Returns,
    ReturnsADictionary,
    SelectsByData,
    SparseGradient,
    SparseProduct,
    SparseTable,
    TensorHook,
    Transposed,
    Two,
    Vectorised,
    accumulation_hook,
    module_backward_hook,
    parameter_hook,
)

from atom.base.errors import ModelError
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.verify import verify_against_eager

REFUSED = {
    "function that is handed a module": (HandsAModule, r"untraceable_modules\.Through"),
    "function that holds a tensor": (HoldsATensor, r"multiplying\.<locals>\.Multiplied"),
    "function that finds a tensor": (FindsATensor, r"untraceable_modules\.Shifted"),
    "function that keeps a tensor": (KeepsATensor, r"untraceable_modules\.Weighted"),
    "functions of one name": (OneNameForTwo, "Multiplied_.* has the name of another"),
    "python randomness": (DrawsInPython, "random"),
    "data-dependent": (DependsOnData, r"traced_modules\.py:\d+"),
    "input changed": (ChangesItsInput, "batch's entry hidden in place.*traced_modules"),
    "running statistics": (lambda: Normalised(nn.BatchNorm1d(WIDTH)), "buffer norm"),
    "momentless statistics": (
        lambda: Normalised(nn.InstanceNorm1d(WIDTH, track_running_stats=True)),
        r"buffer norm\.(running_mean|num_batches_tracked)",
    ),
    "parameter held aside": (HoldsAParameterAside, r"parameter other\.weight from outside"),
    "large buffer": (LargeTable, "table has 262144 bytes"),
    "generator of its own": (OwnGenerator, "a Generator"),
    "numpy randomness": (NumpyRandomness, r"numpy\.random"),
    "counter": (CountsSteps, r"forward changes step \(1 → 2\) at every call"),
    "growing list": (Collects, r"forward changes len\(losses\) \(\d → \d\)"),
    "hook on a tensor": (TensorHook, "register_hook"),
    "hook on a parameter": (parameter_hook, r"parameter layer\.weight has a gradient hook"),
    "hook on a sum": (accumulation_hook, r"parameter layer\.weight has a gradient hook"),
    "hook on a module's backward": (module_backward_hook, "BackwardHookFunction"),
    "parameter's data": (
        ReadsData,
        r"lifted_tensor_0 from outside .* a parameter's data",
    ),
    "a dictionary around the loss": (ReturnsADictionary, "returns a dict, not the loss"),
    "vmap": (Vectorised, r"torch\.vmap or torch\.func at \S+untraceable_modules\.py:\d+"),
    "a region of torch.cond": (ChoosesARegion, r"untraceable_modules\.py:\d+ .*torch\.cond"),
    "sparse gradient": (SparseGradient, r"gradient of aten\.embedding\S* at .* is sparse.*dense"),
    "sparse value": (SparseProduct, r"to_sparse.* at \S+untraceable_modules\.py:\d+ is sparse"),
    "sparse buffer": (SparseTable, "the buffer table is sparse"),
    "complex weights": (ComplexWeights, "parameters mixing is torch.complex64"),
    "weights across memory": (Transposed, "parameter across is not contiguous"),
    "parameters made in forward": (MakesALayer, "has no gradient in the graph, and one in the"),
    "forward ends the process": (Leaves, "cannot be traced at .*leave"),
    "region lost": (LosesARegion, r"made at \S+modules\.py:\d+ has a gradient in the graph"),
    "weight changed": (ChangesAWeight, r"parameter layer\.weight in place, at \S+modules\.py:\d+"),
    "selected by data": (SelectsByData, r"untraceable_modules\.py:\d+.*values in tensors"),
    "checkpoint with reentry": (
        lambda: Checkpointed(use_reentrant=True),
        r"checkpoint\.CheckpointFunction",
    ),
    "several results": (
        lambda: Returns(lambda hidden: {"loss": hidden.sum(), "hidden": hidden}),
        r"Returns\.forward returns 2 values",
    ),
    "no result": (lambda: Returns(lambda hidden: None), "returns no tensor"),
    "vector of one": (
        lambda: Returns(lambda hidden: hidden.sum()[None]),
        r"a tensor \[1\] with a gradient",
    ),
    "whole number": (lambda: Returns(lambda hidden: hidden.argmax()), r"tensor \[\] without a"),
    "without gradient": (
        lambda: Returns(lambda hidden: hidden.sum().detach()),
        r"a tensor \[\] without a",
    ),
}


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
    for model in (DrawsInPython(), NumpyRandomness()):
        with pytest.raises(ModelError):
            trace(model, hidden_states())
    assert random.getstate() == python
    assert numpy.random.get_state()[1].tolist() == numbers


def test_evaluation_mode_is_a_graph_of_its_own() -> None:
    model = LearnedBias(dropout=0.1)
    evaluated = trace(model, tokens_and_targets(), training=False)
    assert model.training
    assert evaluated.graph_hash != trace(model, tokens_and_targets()).graph_hash
    verify_against_eager(model, build_program(evaluated), tokens_and_targets(1), training=False)


def test_the_guards_are_gone_afterwards() -> None:
    model, hidden = HandsAModule(), hidden_states()["hidden"]
    with pytest.raises(ModelError):
        trace(model, {"hidden": hidden})
    model(hidden).backward()
    assert model.layer.weight.grad is not None
    assert model.layer.weight.grad.abs().sum() > 0


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
