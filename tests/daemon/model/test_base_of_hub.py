"""Adapters of a model on the hub: the founder pins its commit, and joiners fetch it from the hub,
or from other peers."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from atom.base.errors import ConfigError
from atom.config.load import normalised_run_text
from atom.daemon.model.pinning import agreed_run
from tests.daemon.model.kept_runs import CONFIG, Folder, round_zero
from tests.daemon.silence import Notes
from tests.daemon.tiny_run import LLAMA
from tests.hub_stand_in import REVISION, Hub, played_hub

ADAPTERS = '[train]\nwhat = "adapters"\nrank = 2'
MODEL = 'huggingface = "owner/llama"\nsequence_tokens = 8'
OF_HUB = f'{MODEL}\nweights = "hub"'


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with played_hub(tmp_path / "cache", monkeypatch) as hub:
        torch.manual_seed(5)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
        model.save_pretrained(tmp_path / "base")
        hub.models["owner/llama"] = tmp_path / "base"
        yield hub


def test_a_joiner_has_the_base_from_the_hub(folder: Folder, hub: Hub) -> None:
    member = folder.found(OF_HUB, more=ADAPTERS)
    assert (member.run.model.weights, member.run.model.revision) == ("hub", REVISION)
    base = transformers.LlamaForCausalLM.from_pretrained(folder.root / "base")
    weights = member.replica.export_parameters()
    for name, value in base.named_parameters():
        assert torch.equal(weights[name], value), name
    folder.as_first_state(member)
    adapter = folder.export(adapter=True)
    told = json.loads((adapter / "adapter_config.json").read_text())
    assert (told["base_model_name_or_path"], told["revision"]) == ("owner/llama", REVISION)
    joiner = folder.enter(member)
    assert round_zero(joiner).fill_frozen()
    for name, arena in joiner.replica.frozen.items():
        assert torch.equal(arena, member.replica.frozen[name])
    hub.down = True
    again = folder.found(OF_HUB, more=ADAPTERS)
    assert again.manifest == member.manifest, "taken up without the hub"
    assert round_zero(joiner, weights=folder.root / "base").fill_frozen()


def test_without_the_hub_the_base_is_fetched_from_peers(
    folder: Folder, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    member = folder.found(OF_HUB, more=ADAPTERS)
    console = Notes()
    joiner = round_zero(folder.enter(member), console)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "other"))
    hub.down = True
    assert not joiner.fill_frozen()
    hub.down = False
    other = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    other.save_pretrained(hub.models["owner/llama"])
    assert not joiner.fill_frozen()
    larger = transformers.LlamaConfig(**CONFIG | {"num_hidden_layers": 4000 // 16})
    transformers.LlamaForCausalLM(larger).save_pretrained(hub.models["owner/llama"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "third"))
    assert not joiner.fill_frozen()
    first, second, third = console.notes
    assert "cannot query" in first
    assert "does not hold the initial weights" in second
    assert "bytes of weights, more than" in third
    for note in console.notes:
        assert note.endswith("; the frozen weights are fetched from other peers")


def test_a_config_alone_may_be_the_hubs(folder: Folder, hub: Hub) -> None:
    model = folder.found(MODEL).run.model
    assert (model.weights, model.revision) == (None, REVISION)


def test_what_contradicts_the_hub_is_refused(folder: Folder, hub: Hub) -> None:
    with pytest.raises(ConfigError, match="and --from says otherwise"):
        folder.found(OF_HUB, weights=folder.root / "base")
    with pytest.raises(ConfigError, match="is no model of the hub"):
        folder.found(f'{LLAMA}\nweights = "hub"')
    member = folder.found(OF_HUB, more=ADAPTERS)
    model = member.run.model.model_copy(update={"revision": None})
    lacking = member.run.model_copy(update={"model": model})
    with pytest.raises(ConfigError, match=r"model\.revision: is missing"):
        agreed_run(replace(member.manifest, run_file=normalised_run_text(lacking)))
