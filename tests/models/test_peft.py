"""Adapters trained here are those of `peft`, trained on the same batches."""

from typing import Any

import peft
import pytest
import torch
import transformers

from atom.models.partly_trained import PartlyTrained
from atom.models.source import materialised
from tests.models.test_partly_trained import ADAPTERS, GPT2, LLAMA, MODELS

# peft asks transformers for what that has under another name now.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
STEPS = 5


def with_pefts(config: dict[str, Any], told: dict[str, Any]) -> tuple[Any, Any]:
    """A model of transformers, and the same within `peft`'s, by an adapter_config.json."""
    content = dict(config)
    made = transformers.AutoConfig.for_model(content.pop("model_type"), **content)
    plain = transformers.AutoModelForCausalLM.from_config(made)
    return plain, peft.get_peft_model(plain, peft.LoraConfig(**{**told, "inference_mode": False}))


@pytest.mark.parametrize(("name", "config"), [("llama", LLAMA), ("gpt2", GPT2)])
def test_steps_are_pefts_to_a_millionth(name: str, config: dict[str, Any]) -> None:
    """With B not zero: then A has a gradient, too."""
    source = PartlyTrained(MODELS[name], ADAPTERS)
    ours = materialised(source, torch.float32, seed=3)
    places, told = source.adapter()
    plain, theirs = with_pefts(config, told)
    values = {
        place.name: torch.randn(place.shape, generator=torch.Generator().manual_seed(number)) / 9
        for number, place in enumerate(places)
    }
    held = {place.name: ours.get_parameter(place.parameter) for place in places}
    with torch.no_grad():
        for own, value in values.items():
            held[own].copy_(value)
        for own, parameter in plain.named_parameters():
            if "lora_" not in own:
                parameter.copy_(ours.get_parameter(own.replace(".base_layer", "")))
    assert not peft.set_peft_model_state_dict(theirs, values).unexpected_keys

    def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        found = model(input_ids=tokens, labels=tokens)
        return found if model is ours else found.loss

    both = [(ours, list(held.values()))]
    both.append((theirs, [p for p in theirs.parameters() if p.requires_grad]))
    assert [len(trained) for _, trained in both] == [len(places)] * 2
    optimizers = [torch.optim.AdamW(trained, 1e-2) for _, trained in both]
    for step in range(STEPS):
        tokens = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(step))
        losses = []
        for (model, _), optimizer in zip(both, optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    after = peft.get_peft_model_state_dict(theirs)
    assert after.keys() == held.keys()
    for own, value in held.items():
        assert (value - values[own]).abs().max() > 1e-3, "it was trained"
        assert (after[own] - value).abs().max() < 1e-6, own
