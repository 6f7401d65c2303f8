"""Runs that train adapters of a given model, and their exports."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from atom.base.errors import ConfigError, MismatchError
from atom.graph.ir import padded_elements
from atom.swarm.state.arenas import state_digest
from tests.daemon.model.kept_runs import CONFIG, Folder, round_zero
from tests.daemon.tiny_run import LLAMA

ADAPTERS = '[train]\nwhat = "adapters"\nrank = 2\ntargets = ["q_proj", "mlp.*"]'


def a_base(folder: Folder) -> tuple[Path, Any]:
    """A published model."""
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    model.save_pretrained(folder.root / "base")
    return folder.root / "base", model


def test_adapters_of_random_weights_are_refused(folder: Folder) -> None:
    with pytest.raises(ConfigError, match="would freeze random weights") as refusal:
        folder.found(LLAMA, more=ADAPTERS)
    assert "--from" in refusal.value.hint


def test_a_joiner_makes_the_adapters_and_fetches_the_base(folder: Folder) -> None:
    path, base = a_base(folder)
    member = folder.found(LLAMA, weights=path, more=ADAPTERS)
    elements = 2 * sum(padded_elements(2 * side) for side in (16, 16, *(16, 24) * 3))
    assert member.replica.elements == elements
    assert {arena.numel() for arena in member.replica.state_arenas().values()} == {elements}
    weights = member.replica.export_parameters()
    for name, value in base.named_parameters():
        assert torch.equal(weights[name], value), name

    joiner = folder.enter(member)
    assert round_zero(joiner).initialise()
    assert not round_zero(joiner).fill_frozen()
    assert round_zero(joiner, weights=path).fill_frozen()
    for name, arena in joiner.replica.frozen.items():
        assert torch.equal(arena, member.replica.frozen[name])
    other = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    other.save_pretrained(folder.root / "other")
    with pytest.raises(MismatchError, match="does not hold the initial weights"):
        round_zero(joiner, weights=folder.root / "other").fill_frozen()
    assert state_digest(member.replica.frozen) == member.manifest.frozen_digest
    nothing = replace(member, manifest=replace(member.manifest, frozen_digest=b""))
    with pytest.raises(MismatchError, match="disagree on whether anything is frozen"):
        folder.enter(nothing, "c")
    (folder.root / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds no model\.safetensors"):
        folder.enter(member, "d", folder.root / "empty")
    assert folder.found(LLAMA, weights=path, more=ADAPTERS).weights == path, "for a damaged file"


def test_a_run_of_the_whole_model_exports_no_adapters(folder: Folder) -> None:
    folder.snapshot(folder.found(LLAMA))
    with pytest.raises(ConfigError, match="trains no adapters"):
        folder.export(adapter=True)
