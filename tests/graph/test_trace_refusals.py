"""What cannot be traced faithfully is refused by name; what can leaves nothing behind."""

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
    Normalised,
    NotALoss,
    Rounds,
    TiedGPT,
    hidden_states,
    tokens_and_targets,
)

from atom.base.errors import ModelError
from atom.graph.trace import trace


def on_meta(make: type[nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


REFUSED = {
    "custom backward": (Rounds, "StraightThrough"),
    "python randomness": (DrawsInPython, "random"),
    "data-dependent": (DependsOnData, r"traced_modules\.py:\d+"),
    "not a scalar": (NotALoss, "scalar loss"),
    "input changed": (ChangesItsInput, "batch's entry hidden in place.*traced_modules"),
    "running statistics": (lambda: Normalised(nn.BatchNorm1d(WIDTH)), "buffer norm"),
    "momentless statistics": (
        lambda: Normalised(nn.InstanceNorm1d(WIDTH, track_running_stats=True)),
        r"buffer norm\.(running_mean|num_batches_tracked)",
    ),
    "parameter held aside": (HoldsAParameterAside, r"parameter other\.weight from outside"),
    "meta parameter held aside": (
        lambda: on_meta(HoldsAParameterAside),
        r"traced_modules\.py:\d+ .*self\.held",
    ),
    "large buffer": (LargeTable, "table has 262144 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        trace(make(), hidden_states())
    assert "".join(capfd.readouterr()) == ""


def test_the_guards_are_gone_afterwards() -> None:
    model, hidden = Rounds(), hidden_states()["hidden"]
    with pytest.raises(ModelError):
        trace(model, {"hidden": hidden})
    model(hidden).backward()
    assert model.layer.weight.grad is not None
    assert model.layer.weight.grad.abs().sum() > 0


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
    with pytest.raises(ModelError, match=r"norm\.weight is float64"):
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


def test_metadata_names_versions_shapes_and_leftovers() -> None:
    metadata = trace(Buffers(), hidden_states()).metadata
    assert metadata["torch"] == torch.__version__.partition("+")[0]
    assert metadata["batch"] == "hidden float32 [2, 16, 16]"
    assert metadata["unused_parameters"] == "unused"
