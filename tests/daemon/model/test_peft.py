"""Adapters train like `peft`'s own on the same batches, and `peft` loads their export."""

import json
from typing import Any

import pytest
import torch
import transformers

from atom.daemon.model.exporting import ADAPTER as WHOLE
from atom.daemon.model.exporting import export_run
from atom.daemon.model.kept_run import KeptRun
from atom.daemon.peer.founding import Membership
from atom.models.huggingface import HuggingFaceSource
from atom.models.partly_trained import Adapters, PartlyTrained
from atom.models.source import materialised
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import write_snapshot
from tests.architectures.configs import config_of
from tests.daemon.model.kept_runs import Folder
from tests.daemon.model.test_adapters import ADAPTERS, a_base
from tests.daemon.silence import Notes
from tests.daemon.tiny_run import GPT3, LLAMA

# peft asks transformers for what that has under another name now.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
STEPS = 5


def logits(model: Any) -> torch.Tensor:
    """Return the logits of a model of `transformers` for eight tokens."""
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=torch.arange(8).unsqueeze(0)).logits
    return found


@pytest.fixture
def peft() -> Any:
    """The library: imported late, it takes seconds."""
    import peft

    return peft


# ---- exports


def changed(folder: Folder, member: Membership) -> None:
    """Change the state on disk, as training would."""
    for name, arena in member.replica.state_arenas().items():
        if name == "master":
            arena.add_(torch.randn(arena.shape, generator=torch.Generator().manual_seed(1)) / 9)
    folder.as_first_state(member)


def test_exports_are_what_peft_and_transformers_load(peft: Any, folder: Folder) -> None:
    path, base = a_base(folder)
    member = folder.found(LLAMA, weights=path, more=ADAPTERS)
    changed(folder, member)
    plain = logits(base)
    merged = transformers.LlamaForCausalLM.from_pretrained(folder.export("merged"))
    assert (logits(merged) - plain).abs().max() > 1e-3
    adapted = peft.PeftModel.from_pretrained(base, folder.export("adapter", adapter=True))
    assert (logits(merged) - logits(adapted)).abs().max() < 1e-5
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(folder.root / "adapter")
    assert torch.equal(logits(loaded), logits(adapted)), "auto classes find the base"
    size = sum(f.stat().st_size for f in (folder.root / "adapter").glob("*.safetensors"))
    assert size < 8 * member.replica.elements
    weights = {"master": member.replica.state_arenas()["master"]}
    first = KeptRun.read(folder.root / "a").journal.heads[0]
    place = folder.root / "a" / "checkpoints"
    write_snapshot(place, 0, first.digest, state_digest(weights), weights, "best", 2.0)
    for name, adapter in (("best", False), ("best-adapter", True)):
        folder.export(name, adapter=adapter, wanted="best")
    best = transformers.LlamaForCausalLM.from_pretrained(folder.root / "best")
    assert torch.equal(logits(best), logits(merged)), "a checkpoint has the adapters alone"
    held = [(folder.root / name / WHOLE).read_bytes() for name in ("adapter", "best-adapter")]
    assert held[0] == held[1]
    (folder.root / "a" / "base.txt").unlink()  # a joiner got the base from other peers
    notes = Notes()
    export_run(folder.root / "joiners", folder.root / "a", notes, adapter=True)
    assert any("base_model_name_or_path" in note for note in notes.notes)


def test_of_a_gpt3_the_adapters_are_beside_gpt2s_layers(peft: Any, folder: Folder) -> None:
    frozen = folder.found(GPT3, "plain")
    folder.snapshot(frozen, "plain")
    path = folder.export("base", "plain")
    adapters = ADAPTERS.replace('"q_proj", "mlp.*"', '"qkv", "contract"')
    changed(folder, folder.found(GPT3, weights=path, more=adapters))
    merged = transformers.GPT2LMHeadModel.from_pretrained(folder.export("merged"))
    adapter = folder.export("adapter", adapter=True)
    told = json.loads((adapter / "adapter_config.json").read_text())
    assert told["fan_in_fan_out"]
    assert told["target_modules"][0] == "transformer.h.0.attn.c_attn"
    base = transformers.GPT2LMHeadModel.from_pretrained(path)
    adapted = peft.PeftModel.from_pretrained(base, adapter)
    assert (logits(merged) - logits(adapted)).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "llama4_text", "deepseek_v3"])
def test_adapters_of_experts_compute_as_pefts(peft: Any, name: str) -> None:
    whole = HuggingFaceSource(config_of(name), 16)
    source = PartlyTrained(whole, Adapters(2, 4.0, 0.0, ()))
    ours, base = (materialised(each, torch.float32, 3) for each in (source, whole))
    for part, value in ours.named_parameters():
        if "lora_B" in part:
            torch.nn.init.normal_(value, generator=torch.Generator().manual_seed(len(part)))
    values = {part: value.detach() for part, value in ours.named_parameters()}
    places, told = source.adapter()
    plain = transformers.AutoModelForCausalLM.from_config(base.config)
    plain.load_state_dict(base.state_dict())
    theirs = peft.get_peft_model(plain, peft.LoraConfig(**{**told, "inference_mode": False}))
    held = {place.name: values[place.parameter] for place in places}
    assert not peft.set_peft_model_state_dict(theirs, held).unexpected_keys
    assert sum(value.requires_grad for value in theirs.parameters()) == len(places)
    tokens = torch.randint(3, 200, (2, 16), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": tokens, "labels": tokens}
    loss = ours(**batch)
    assert torch.equal(loss, theirs(**batch).loss)
    with torch.no_grad():
        assert (base(**batch) - loss).abs() > 1e-3
        for part, value in base.named_parameters():
            added = source.added(part, values.__getitem__)
            value += 0 if added is None else added
        assert (base(**batch) - loss).abs() < 1e-5


def test_adapters_of_a_models_text_name_its_class(peft: Any, folder: Folder) -> None:
    known = transformers.AutoConfig.for_model(**config_of("mistral3"))
    base = transformers.AutoModelForImageTextToText.from_config(known).float()
    base.save_pretrained(folder.root / "base")
    (folder.root / "config.json").write_text((folder.root / "base" / "config.json").read_text())
    changed(folder, folder.found(LLAMA, weights=folder.root / "base", more=ADAPTERS))
    loaded = peft.AutoPeftModel.from_pretrained(folder.export("adapter", adapter=True))
    merged = transformers.AutoModelForImageTextToText.from_pretrained(folder.export())
    assert (logits(loaded) - logits(merged)).abs().max() < 1e-5
    assert (logits(loaded) - logits(base)).abs().max() > 1e-3


def test_a_replica_steps_as_peft_under_torchs_adamw(peft: Any, folder: Folder) -> None:
    path, base = a_base(folder)
    member = folder.found(LLAMA, weights=path, more=ADAPTERS)
    replica, source = member.replica, member.recipe.source
    assert isinstance(source, PartlyTrained)
    places, told = source.adapter()
    theirs = peft.get_peft_model(base, peft.LoraConfig(**{**told, "inference_mode": False}))
    first = replica.export_parameters()
    held = {place.name: first[place.parameter].clone() for place in places}
    assert not peft.set_peft_model_state_dict(theirs, held).unexpected_keys
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for step in range(2 * STEPS):
        tokens = torch.randint(256, (4, 8), generator=torch.Generator().manual_seed(step))
        replica.reset_gradients()
        replica.run_pass(
            [source.text_batch({"tokens": tokens, "targets": tokens.roll(-1, dims=1)})]
        )
        replica.begin_own_step()
        optimizer.zero_grad()
        loss = theirs(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        assert replica.loss_sum / replica.sequences == pytest.approx(loss.item(), abs=1e-6)
    weights, after = replica.export_parameters(), peft.get_peft_model_state_dict(theirs)
    for place in places:
        assert (weights[place.parameter] - held[place.name]).abs().max() > 1e-2, "it was trained"
        assert (weights[place.parameter] - after[place.name]).abs().max() < 1e-6, place.name
