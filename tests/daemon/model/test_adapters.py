"""A run that trains adapters beside a given model, and what is exported of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from atom.base.errors import ConfigError
from atom.daemon.console import Silence
from atom.daemon.model.exporting import export_run
from atom.daemon.peer.founding import Membership
from atom.swarm.state.arenas import state_digest
from tests.daemon.model.kept_runs import CONFIG, WORDS, Folder, folder_in
from tests.daemon.model.test_given_weights import as_the_first_state
from tests.daemon.tiny_run import GPT3, LLAMA

# peft asks transformers for what that has under another name now.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
ADAPTERS = '[train]\nwhat = "adapters"\nrank = 2\ntargets = ["q_proj", "mlp.*"]'
LAST = '[train]\nwhat = "last-layers"\nlayers = 1'


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path) as folder:
        yield folder


def a_base(folder: Folder) -> tuple[Path, Any]:
    """A published model."""
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    model.save_pretrained(folder.root / "base")
    return folder.root / "base", model


def changed(folder: Folder, member: Membership) -> None:
    """As if it had been trained, on disk."""
    for name, arena in member.replica.state_arenas().items():
        if name == "master":
            arena.add_(torch.randn(arena.shape, generator=torch.Generator().manual_seed(1)) / 9)
    as_the_first_state(folder, member)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=torch.arange(8).unsqueeze(0)).logits
    return found


def test_a_joiner_makes_the_adapters_and_fetches_the_base(folder: Folder) -> None:
    path, base = a_base(folder)
    member = folder.found(LLAMA, weights=path, more=ADAPTERS)
    elements = 2 * 2 * (16 + 16 + 3 * (16 + 24))
    assert member.replica.elements == elements
    assert {arena.numel() for arena in member.replica.state_arenas().values()} == {elements}
    weights = member.replica.export_parameters()
    for name, value in base.named_parameters():
        assert torch.equal(weights[name], value), name

    joiner = folder.enter(member)
    assert joiner.initialise()
    assert not joiner.fill_frozen()
    assert state_digest(member.replica.frozen) == member.manifest.frozen_digest
    again = folder.found(LLAMA, more=ADAPTERS, weights=path)
    assert again.manifest == member.manifest


def test_exports_are_what_peft_and_transformers_load(folder: Folder) -> None:
    path, base = a_base(folder)
    member = folder.found(LLAMA, weights=path, more=ADAPTERS)
    changed(folder, member)
    plain = logits(base)
    export_run(folder.root / "merged", folder.root / "a", Silence())
    merged = transformers.LlamaForCausalLM.from_pretrained(folder.root / "merged")
    assert (logits(merged) - plain).abs().max() > 1e-3
    export_run(folder.root / "adapter", folder.root / "a", Silence(), adapter=True)
    adapted = peft.PeftModel.from_pretrained(base, folder.root / "adapter")
    assert (logits(merged) - logits(adapted)).abs().max() < 1e-5
    size = sum(f.stat().st_size for f in (folder.root / "adapter").glob("*.safetensors"))
    assert size < 8 * member.replica.elements


def test_of_a_gpt3_the_adapters_are_beside_gpt2s_layers(folder: Folder) -> None:
    member = folder.found(GPT3, more=ADAPTERS.replace('"q_proj", "mlp.*"', '"qkv", "contract"'))
    changed(folder, member)
    export_run(folder.root / "merged", folder.root / "a", Silence())
    export_run(folder.root / "adapter", folder.root / "a", Silence(), adapter=True)
    merged = transformers.GPT2LMHeadModel.from_pretrained(folder.root / "merged")
    told = json.loads((folder.root / "adapter" / "adapter_config.json").read_text())
    assert told["fan_in_fan_out"]
    assert told["target_modules"][0] == "transformer.h.0.attn.c_attn"
    frozen = folder.found(GPT3, "plain")
    folder.snapshot(frozen, "plain")
    export_run(folder.root / "base", folder.root / "plain", Silence())
    base = transformers.GPT2LMHeadModel.from_pretrained(folder.root / "base")
    adapted = peft.PeftModel.from_pretrained(base, folder.root / "adapter")
    assert (logits(merged) - logits(adapted)).abs().max() < 1e-5


def test_last_layers_are_trained_from_given_weights(folder: Folder) -> None:
    path, base = a_base(folder)
    member = folder.found(LLAMA, weights=path, more=LAST)
    joiner = folder.enter(member)
    assert not joiner.initialise()
    folder.snapshot(member)
    export_run(folder.root / "out", folder.root / "a", Silence())
    found = transformers.LlamaForCausalLM.from_pretrained(folder.root / "out")
    assert torch.equal(logits(found), logits(base))
    with pytest.raises(ConfigError, match="trains no adapters"):
        export_run(folder.root / "x", folder.root / "a", Silence(), adapter=True)


def test_a_part_that_is_not_there_is_refused(folder: Folder) -> None:
    for more, what in (
        (ADAPTERS.replace("q_proj", "nothing"), "'nothing' names none"),
        (LAST.replace("1", "3"), "has 2 layers, and the last 3"),
    ):
        with pytest.raises(ConfigError, match=what):
            folder.found(LLAMA, more=more)
    with pytest.raises(ConfigError, match="names none") as caught:
        folder.found(WORDS, more=ADAPTERS)
    assert caught.value.hint == "the model has none"
