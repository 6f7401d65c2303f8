"""`atom start --from`: the run begins from the folder's weights bit for bit, or not at all."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from atom.base.errors import ConfigError, MismatchError
from atom.config.load import run_from_text
from atom.daemon.peer.founding import Membership
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import list_snapshots
from tests.daemon.model.kept_runs import WORDS, Folder, round_zero
from tests.daemon.tiny_run import GPT3, LLAMA

Weights = dict[str, Tensor]


def weights_of(member: Membership) -> Weights:
    return {name: value.clone() for name, value in member.replica.export_parameters().items()}


def trained(folder: Folder, model: str) -> tuple[Path, Weights]:
    """A run's weights after a step, exported."""
    member = folder.found(model)
    state = member.replica.state_arenas()
    for name, value in weights_of(member).items():
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
        member.replica.export_parameters()[name].add_(0.1 * noise)
    assert state_digest(state) != member.manifest.initial_state_digest
    folder.as_first_state(member)
    return folder.export("weights"), weights_of(member)


@pytest.mark.parametrize("model", [GPT3, WORDS], ids=["gpt3", "module"])
def test_what_was_exported_is_begun_from(folder: Folder, model: str) -> None:
    path, wanted = trained(folder, model)
    member = folder.found(model, "tuned", weights=path)
    found = weights_of(member)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    state = member.replica.state_arenas()
    assert state_digest(state) == member.manifest.initial_state_digest
    assert not state["exp_avg"].any()
    assert run_from_text(member.manifest.run_file).model.weights == "given"
    (snapshot,) = list_snapshots(folder.root / "tuned" / "snapshots")
    assert (snapshot.round, snapshot.head) == (0, member.genesis.digest)
    assert state_digest(snapshot.load()) == member.manifest.initial_state_digest

    shutil.rmtree(path)  # only the founder ever had it, and its snapshot is enough
    joiner = folder.enter(member, "joiner")
    assert not round_zero(joiner).initialise()
    assert not joiner.replica.state_arenas()["master"].any(), "nothing was made up instead"
    again = folder.found(model, "tuned", weights=path)
    assert again.manifest == member.manifest
    assert folder.found(model, "tuned").manifest == member.manifest


def test_how_a_run_begins_cannot_change(folder: Folder) -> None:
    path, _ = trained(folder, GPT3)
    with pytest.raises(MismatchError, match="began from a seed"):
        folder.found(GPT3, "a", weights=path)
    with pytest.raises(ConfigError, match="none are given") as caught:
        folder.found(f'{GPT3}\nweights = "given"', "fresh")
    assert "--from FOLDER" in caught.value.hint


def test_an_export_in_32_bits_keeps_every_bit_of_a_state_of_16(folder: Folder) -> None:
    model, more = f'{GPT3}\nprecision = "bfloat16"', 'state = "split"'
    member = folder.found(model, more=more)
    seeded = torch.Generator().manual_seed(9)
    member.replica.initialise(lambda name, shape: torch.randn(shape, generator=seeded))
    folder.as_first_state(member)
    path = folder.export("weights", precision="float32")
    begun = folder.found(model, "next", weights=path, more=more)
    wanted, found = weights_of(member), weights_of(begun)
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


def test_a_state_directory_holds_no_exported_weights(folder: Folder) -> None:
    trained(folder, GPT3)
    with pytest.raises(ConfigError, match="is the state directory of a peer") as caught:
        folder.found(GPT3, "next", weights=folder.root / "a")
    assert "atom export" in caught.value.hint


# ---- what the loss does not use

CROSSED = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": 256,
    "n_positions": 8,
    "add_cross_attention": True,
}
"""Config of a model whose loss does not use its cross-attention, because there is no encoder."""


def crossed(folder: Folder) -> tuple[Path, Weights]:
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CROSSED))
    path = folder.root / "crossed"
    model.save_pretrained(path)
    (folder.root / "config.json").write_text(json.dumps(CROSSED))
    return path, dict(model.named_parameters())


@pytest.mark.parametrize("is_given", [True, False])
def test_what_the_loss_does_not_use_is_kept_and_exported(folder: Folder, is_given: bool) -> None:
    """The seed makes the values of a run whose weights are not given."""
    path, wanted = crossed(folder)
    member = folder.found(LLAMA, weights=path if is_given else None)
    folder.snapshot(member)
    found = transformers.GPT2LMHeadModel.from_pretrained(folder.export())
    first = member.recipe.source.initial_values(member.run.run.seed)
    for name, value in found.named_parameters():
        begins = wanted[name] if is_given else first(name, tuple(value.shape))
        assert torch.equal(value, begins), name
    frozen = [spec.name for spec in member.recipe.graph.layout.specs if spec.frozen]
    assert frozen
    assert all("crossattention" in name for name in frozen if "ln_cross" not in name)
    joiner = folder.enter(member)
    assert round_zero(joiner).initialise() is not is_given
    if is_given:
        assert round_zero(joiner, weights=path).fill_frozen()
        assert state_digest(joiner.replica.frozen) == member.manifest.frozen_digest
