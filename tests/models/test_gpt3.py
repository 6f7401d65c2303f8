import dataclasses
import json
import math

import pytest
import torch
import transformers

from atom.base.errors import ConfigError
from atom.models.gpt3 import (
    GPT2_VOCABULARY,
    GPT3,
    SIZES,
    GPT3Config,
    GPT3Source,
    initial_value,
    initialise,
    loss_chunks,
    parameter_shapes,
)

TINY = GPT3Config(layers=2, heads=2, model_dim=16, sequence_tokens=8, vocabulary_size=32)
PAPER_MILLIONS = {
    "small": 125, "medium": 350, "large": 760, "xl": 1300,
    "2.7b": 2700, "6.7b": 6700, "13b": 13000, "175b": 175000,
}  # fmt: skip


def parameter_count(config: GPT3Config) -> int:
    return sum(map(math.prod, parameter_shapes(config).values()))


def tiny(**changes: object) -> GPT3:
    model = GPT3(dataclasses.replace(TINY, **changes))
    initialise(model, seed=1)
    return model


def batch(sequences: int = 2, length: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 32, (sequences, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@pytest.mark.parametrize("size", SIZES)
def test_counts_are_exact_and_near_the_papers_rounded_ones(size: str) -> None:
    config = SIZES[size]
    layers, width = config.layers, config.model_dim
    exact = layers * (12 * width**2 + 13 * width) + 2 * width
    exact += (config.vocabulary_size + config.sequence_tokens) * width
    assert parameter_count(config) == exact
    # The paper rounds to two or three digits: 350M is 356M, 2.7B is 2.65B, by its own numbers.
    assert exact / 1e6 == pytest.approx(PAPER_MILLIONS[size], rel=0.02)


def test_a_value_depends_on_seed_name_and_shape_alone() -> None:
    name, shape = "blocks.1.feed_forward.contract.weight", (16, 64)
    before = torch.get_rng_state()
    first = initial_value(TINY, name, shape, seed=3)
    torch.rand(7)
    assert torch.equal(first, initial_value(TINY, name, shape, seed=3))
    assert not torch.equal(first, initial_value(TINY, name, shape, seed=4))
    other = initial_value(TINY, name.replace("1", "0"), shape, seed=3)
    assert not torch.equal(first, other)
    torch.set_rng_state(before)
    initial_value(TINY, name, shape, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_deviations_follow_the_paper() -> None:
    wide = dataclasses.replace(TINY, layers=8)
    shape = (256, 256)
    plain = initial_value(wide, "blocks.0.attention.qkv.weight", shape, seed=0)
    scaled = initial_value(wide, "blocks.0.attention.projection.weight", shape, seed=0)
    assert plain.std().item() == pytest.approx(0.02, rel=0.02)
    assert scaled.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert initial_value(wide, "final_norm.weight", (4,), 0).tolist() == [1.0] * 4
    assert initial_value(wide, "final_norm.bias", (4,), 0).tolist() == [0.0] * 4


def test_no_position_sees_the_future() -> None:
    model = tiny()
    tokens, _ = batch(1)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 32
    before, after = model.logits(tokens), model.logits(changed)
    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])


def test_loss_is_float32_for_bfloat16_weights() -> None:
    model = GPT3(TINY, dtype=torch.bfloat16)
    initialise(model, seed=1)
    loss = model(*batch())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(tiny()(*batch()).item(), abs=0.05)
    assert model.logits(batch()[0]).dtype == torch.bfloat16


WIDE = dataclasses.replace(TINY, sequence_tokens=600, vocabulary_size=80)


def wide(dtype: torch.dtype) -> tuple[GPT3, torch.Tensor, torch.Tensor]:
    """Return a model with a loss in chunks, tokens and targets; some targets do not count."""
    model = GPT3(WIDE, dtype=dtype)
    initialise(model, seed=1)
    tokens, targets = (torch.randint(0, 80, (2, 600)) for _ in range(2))
    targets[0, 300:410] = -100
    assert loss_chunks(WIDE.model_dim, WIDE.vocabulary_size, tokens.numel()) == 8
    return model, tokens, targets


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02), (torch.float16, 3e-3)]
)
def test_the_loss_in_chunks_is_the_loss(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    model, tokens, targets = wide(dtype)
    loss = model(tokens, targets)
    chunked = torch.autograd.grad(loss, list(model.parameters()))
    logits = model.logits(tokens).float()
    whole = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(whole.item(), rel=1e-6)
    gradients = torch.autograd.grad(whole, list(model.parameters()))
    for found, expected in zip(chunked, gradients, strict=True):
        assert (found - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize(
    ("size", "tokens", "chunks"),
    [("small", 256, 1), ("small", 2048, 8), ("small", 32768, 16), ("2.7b", 2048, 4)],
)
def test_chunks_are_as_many_as_save_memory(size: str, tokens: int, chunks: int) -> None:
    assert loss_chunks(SIZES[size].model_dim, GPT2_VOCABULARY, tokens) == chunks
    assert loss_chunks(SIZES[size].model_dim, 256, tokens) == 1


# ---- comparison with the library's GPT-2: equal in every bit; other models are refused

CONFIG = GPT3Config(3, 4, 32, sequence_tokens=24, vocabulary_size=300)
SOURCE = GPT3Source(CONFIG)
GPT2 = dict(SOURCE.outside(torch.float32).config or {})


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
    outside = SOURCE.outside(dtype)
    config = transformers.GPT2Config(**GPT2)
    twin = transformers.GPT2LMHeadModel(config).to(dtype)
    values = dict(model.named_parameters())
    state = {p.name: p.from_parameter(values[p.parameter]).contiguous() for p in outside.places}
    assert all(state[place.name].shape == place.shape for place in outside.places)
    lacking = twin.load_state_dict(state, strict=False)
    assert lacking == (["lm_head.weight"], []), "tied"
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


def test_a_config_of_the_same_model_is_taken() -> None:
    SOURCE.require_config(json.dumps(GPT2))
    SOURCE.require_config(json.dumps(transformers.GPT2Config(**GPT2).to_dict()))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "llama"}, "model_type = 'llama', the run's 'gpt2'"),
        ({"n_layer": 2}, "n_layer = 2, the run's 3"),
        ({"n_inner": 100}, "n_inner = 100, the run's 128"),
        ({"n_embd": {}}, "n_embd = {}"),
        ({"activation_function": []}, "activation_function = []"),
        ({"n_positions": 1024}, "n_positions = 1024, the run's 24"),
        ({"activation_function": "gelu"}, "activation_function = 'gelu'"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon = 1e-06"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False"),
    ],
)
def test_another_model_is_refused_by_its_key(changed: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SOURCE.require_config(json.dumps(GPT2 | changed))
    assert said in caught.value.message
    assert caught.value.hint
