"""Our family as the library's GPT-2: equal in every bit; what is another model is refused."""

import pytest
import torch
import transformers

from atom.models.gpt3 import GPT3, GPT3Config, initialise
from atom.models.gpt3_source import PREFIX, gpt2_config, gpt2_outside, require_gpt2
from atom.models.source import SourceError

CONFIG = GPT3Config(3, 4, 32, sequence_tokens=24, vocabulary_size=300)


def ours(dtype: torch.dtype) -> GPT3:
    model = GPT3(CONFIG, dtype=dtype)
    initialise(model, 3)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms are not 0 and 1 for long
            noise = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.add_(noise.to(dtype))
    return model.eval()


def theirs(model: GPT3, dtype: torch.dtype) -> torch.nn.Module:
    outside = gpt2_outside(CONFIG)
    config = transformers.GPT2Config(**{**gpt2_config(CONFIG)})
    twin = transformers.GPT2LMHeadModel(config).to(dtype)
    values = dict(model.named_parameters())
    state = {p.name: p.from_parameter(values[p.parameter]).contiguous() for p in outside.places}
    assert all(state[place.name].shape == place.shape for place in outside.places)
    lacking = twin.load_state_dict(state, strict=False)
    assert lacking == ([place.name for place in outside.aliases], [])
    twin.tie_weights()
    return twin.eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_logits_are_equal_in_every_bit(dtype: torch.dtype) -> None:
    model = ours(dtype)
    tokens = torch.randint(300, (3, 24), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = theirs(model, dtype)(input_ids=tokens).logits
        assert torch.equal(model.logits(tokens), logits)
    assert logits.std() > 0.1


def test_every_parameter_has_one_place() -> None:
    places = gpt2_outside(CONFIG).places
    names = [name for name, _ in GPT3(CONFIG, device="meta").named_parameters()]
    assert [place.parameter for place in places] == names
    assert len({place.name for place in places}) == len(places)
    assert all(place.name.startswith(PREFIX) for place in places)


def test_masks_of_early_versions_are_no_weights() -> None:
    ignored = gpt2_outside(CONFIG).ignored
    assert ignored("h.0.attn.bias")
    assert ignored("transformer.h.11.attn.masked_bias")
    assert not ignored("transformer.h.0.attn.c_attn.bias")
    assert not ignored("transformer.h.0.crossattention.bias")


def test_a_config_of_the_same_model_is_taken() -> None:
    require_gpt2(CONFIG, gpt2_config(CONFIG))
    require_gpt2(CONFIG, transformers.GPT2Config(**gpt2_config(CONFIG)).to_dict())
    sparse = {"model_type": "gpt2", "activation_function": "gelu_new"}
    require_gpt2(GPT3Config(12, 12, 768, sequence_tokens=1024), sparse)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', and gpt3 is gpt2 there"),
        ({"n_layer": 2}, "n_layer = 2, the run's 3"),
        ({"n_inner": 100}, "n_inner = 100, the run's 128"),
        ({"n_inner": None, "n_embd": {}}, "n_embd = {}"),
        ({"n_layer": "3"}, "n_layer = '3'"),
        ({"activation_function": []}, "activation_function = []"),
        ({"vocab_size": 301}, "vocab_size = 301"),
        ({"n_positions": 1024}, "n_positions = 1024, the run's 24"),
        ({"activation_function": "gelu"}, "activation_function = 'gelu'"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon = 1e-06"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False"),
    ],
)
def test_another_model_is_refused_by_its_key(changed: dict[str, object], said: str) -> None:
    with pytest.raises(SourceError) as caught:
        require_gpt2(CONFIG, {**gpt2_config(CONFIG), **changed})
    assert said in caught.value.message
    assert caught.value.hint
