"""`atom start --from`: the run begins from the folder's weights bit for bit, or not at all."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from atom.base.errors import ConfigError, MismatchError
from atom.config.load import run_from_text
from atom.config.peer_file import PeerFile
from atom.daemon.model.exporting import export_run
from atom.daemon.model.pinning import pin_for_plan
from atom.daemon.model.recipe import open_source
from atom.daemon.model.weight_files import given_values
from atom.daemon.peer.founding import Membership
from atom.models.huggingface import HuggingFaceSource
from atom.models.source import ModelSource
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import list_snapshots
from tests.daemon.model.kept_runs import CONFIG, WORDS, Folder, folder_in, round_zero
from tests.daemon.silence import Silence
from tests.daemon.tiny_run import GPT3, LLAMA

Weights = dict[str, Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path) as folder:
        yield folder


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
    target = folder.root / "weights"
    folder.as_first_state(member)
    export_run(target, folder.root / "a", Silence())
    return target, weights_of(member)


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
    export_run(folder.root / "weights", folder.root / "a", Silence(), "float32")
    begun = folder.found(model, "next", weights=folder.root / "weights", more=more)
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


def crossed(folder: Folder, root: Path) -> tuple[Path, Weights]:
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**CROSSED))
    model.save_pretrained(root / "crossed")
    (folder.root / "config.json").write_text(json.dumps(CROSSED))
    return root / "crossed", dict(model.named_parameters())


def test_what_the_loss_does_not_use_is_kept_and_exported(folder: Folder, tmp_path: Path) -> None:
    path, wanted = crossed(folder, tmp_path)
    member = folder.found(LLAMA, weights=path)
    folder.snapshot(member)
    export_run(tmp_path / "out", tmp_path / "a", Silence())
    found = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    for name, value in found.named_parameters():
        assert torch.equal(value, wanted[name]), name
    frozen = [spec.name for spec in member.recipe.graph.layout.specs if spec.frozen]
    assert frozen
    assert all("crossattention" in name for name in frozen if "ln_cross" not in name)
    joiner = folder.enter(member)
    assert not round_zero(joiner).initialise()
    assert round_zero(joiner, weights=path).fill_frozen()
    assert state_digest(joiner.replica.frozen) == member.manifest.frozen_digest


def test_what_the_loss_does_not_use_is_exported_as_the_seed_made_it(
    folder: Folder, tmp_path: Path
) -> None:
    _, shapes = crossed(folder, tmp_path)
    member = folder.found(LLAMA)
    folder.snapshot(member)
    export_run(tmp_path / "out", tmp_path / "a", Silence())
    found = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    first = member.recipe.source.initial_values(member.run.run.seed)
    for name, value in found.named_parameters():
        assert torch.equal(value, first(name, tuple(shapes[name].shape))), name


# ---- folders of other programs


class Tuned:
    """A folder that `transformers` wrote, and a way to read it as a run would."""

    def __init__(self, folder: Folder, root: Path) -> None:
        self.path = root / "llama"
        torch.manual_seed(1)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
        model.save_pretrained(self.path)
        self.weights = {name: value.detach() for name, value in model.named_parameters()}
        shutil.copyfile(self.path / "config.json", folder.root / "config.json")
        pinned = pin_for_plan(folder.run(LLAMA), folder.root, PeerFile())
        self.source: ModelSource = open_source(*pinned)

    def change(self, edit: Callable[[Weights], None]) -> None:
        weights = load_file(self.path / "model.safetensors")
        edit(weights)
        save_file(weights, self.path / "model.safetensors")

    def values(self) -> Weights:
        value_of = given_values(self.source, self.path)
        return {name: value_of(name, tuple(v.shape)) for name, v in self.weights.items()}


@pytest.fixture
def tuned(folder: Folder, tmp_path: Path) -> Tuned:
    return Tuned(folder, tmp_path)


def _bare(weights: Weights) -> None:
    for name in list(weights):
        weights[name.removeprefix("model.")] = weights.pop(name)


def _half(weights: Weights) -> None:
    weights.update({name: value.to(torch.bfloat16) for name, value in weights.items()})


def _head(weights: Weights) -> None:
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()


@pytest.mark.parametrize("edit", [dict, _bare, _half, _head])
def test_other_ways_to_write_the_same(tuned: Tuned, edit: Callable[[Weights], None]) -> None:
    tuned.change(edit)
    for name, value in tuned.values().items():
        wanted = tuned.weights[name]
        assert torch.equal(value, wanted.bfloat16().float() if edit is _half else wanted)


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda w: w.pop(NORM), f"does not hold {NORM}"),
        (lambda w: w.update(odd=torch.ones(1)), "holds tensors that the model lacks: odd"),
        (lambda w: w.update({NORM: torch.ones(17)}), f"other shapes: {NORM} [17], not [16]"),
        (lambda w: w[NORM].fill_(torch.nan), f"{NORM} has values that are not finite"),
        (
            lambda w: w.update({NORM: torch.ones(16).int()}),
            f"{NORM} holds torch.int32, not weights",
        ),
        (lambda w: (_head(w), w["lm_head.weight"].add_(1)), "differ, the model ties them"),
        (lambda w: w.update({"norm.weight": w[NORM] + 1}), f"both {NORM} and norm.weight: one"),
    ],
)
def test_what_does_not_fit_is_named(
    tuned: Tuned, edit: Callable[[Weights], None], said: str
) -> None:
    tuned.change(edit)
    with pytest.raises(ConfigError) as caught:
        tuned.values()
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 9.0}),
        ("rms_norm_eps", 0.5),
        ("num_attention_heads", 4),
    ],
)
def test_another_model_of_the_same_shapes_is_refused(tuned: Tuned, key: str, value: object) -> None:
    config = json.loads((tuned.path / "config.json").read_text())
    (tuned.path / "config.json").write_text(json.dumps({**config, key: value, "head_dim": 8}))
    with pytest.raises(ConfigError, match=f"the folder's model has {key} = "):
        tuned.values()


# ---- architectures that lie in folders in another form than they compute with

MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": 2,
    "vocab_size": 256,
    "max_position_embeddings": 16,
}


def test_the_library_reads_what_it_converts(folder: Folder, tmp_path: Path) -> None:
    torch.manual_seed(1)
    path = tmp_path / "mixtral"
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**MIXTRAL))
    model.save_pretrained(path)
    source = HuggingFaceSource(MIXTRAL, 8)
    assert source.outside(torch.float32).converted is not None
    value_of = given_values(source, path)
    for name, value in model.named_parameters():
        assert torch.equal(value_of(name, tuple(value.shape)), value), name

    weights = load_file(path / "model.safetensors")
    lost = next(name for name in weights if name.endswith("o_proj.weight"))
    for edit, said in ((weights.pop(lost), "missing keys"), (torch.ones(3), "the config")):
        if said == "the config":
            weights[lost] = edit
        save_file(weights, path / "model.safetensors", {"format": "pt"})
        with pytest.raises(ConfigError, match=said):
            given_values(source, path)
