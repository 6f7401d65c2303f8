"""Partly trained models: adapters and refusals."""

import fnmatch

import pytest
import torch
from torch import nn

from atom.base.errors import ConfigError
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3Config, GPT3Source
from atom.models.huggingface import HuggingFaceSource
from atom.models.partly_trained import Adapters, PartlyTrained
from atom.models.source import ModelSource, Outside, materialised, outside_of
from tests.architectures.configs import config_of

LLAMA = {**config_of("llama"), "num_hidden_layers": 3, "tie_word_embeddings": True}
PLAIN = GPT3Config(3, 2, 16, 8, 64, 0.0)
MODELS = {
    "llama": HuggingFaceSource(LLAMA, 8),
    "gpt2": HuggingFaceSource(config_of("gpt2"), 8),
    "gpt3": GPT3Source(PLAIN),
    "qwen3_moe": HuggingFaceSource(config_of("qwen3_moe"), 8),
}
ADAPTERS = Adapters(rank=4, alpha=6.0, dropout=0.0, targets=())


def trained(source: ModelSource, part: Adapters) -> set[str]:
    model = PartlyTrained(source, part).build(torch.float32)
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", MODELS)
def test_adapters_alone_are_trained_and_begin_by_adding_nothing(name: str) -> None:
    source = PartlyTrained(MODELS[name], ADAPTERS)
    model, plain = (materialised(each, torch.float32, 3) for each in (source, MODELS[name]))
    places, _ = source.adapter()
    assert trained(MODELS[name], ADAPTERS) == {place.parameter for place in places}
    tokens, targets = torch.randint(64, (2, 2, 8))
    batch = source.text_batch({"tokens": tokens, "targets": targets})
    assert torch.equal(model(**batch), plain(**batch))
    downs = [v for n, v in model.named_parameters() if "lora_A" in n]
    assert all(0 < value.abs().max() <= value.shape[1] ** -0.5 for value in downs)
    if name == "gpt2":
        graph = trace(source.build(torch.float32), source.example_batch(2))
        assert {spec.name for spec in graph.layout.trained} == trained(MODELS[name], ADAPTERS)


def test_targets_are_ends_of_names_with_wildcards() -> None:
    def layers(*targets: str) -> set[str]:
        part = Adapters(2, 4.0, 0.5, targets)
        names = trained(MODELS["llama"], part)
        return {name.removeprefix("model.layers.").partition(".lora")[0] for name in names}

    assert layers("q_proj", "1.mlp.*_proj") == {
        "0.self_attn.q_proj", "1.self_attn.q_proj", "2.self_attn.q_proj",
        "1.mlp.gate_proj", "1.mlp.up_proj", "1.mlp.down_proj",
    }  # fmt: skip
    for missing in ("proj", "lm_head", "embed_tokens", "q_proj.weight"):
        with pytest.raises(ConfigError, match="names none") as caught:
            layers("q_proj", missing)
        assert "q_proj" in caught.value.hint


def test_the_shrunk_model_has_adapters_where_its_layers_allow() -> None:
    part = Adapters(2, 4.0, 0.0, ("layers.2.mlp.up_proj", "k_proj"))
    small = PartlyTrained(MODELS["llama"], part).shrunk()
    names = [n for n, p in small.build(torch.float32).named_parameters() if p.requires_grad]
    assert {name.split(".")[4] for name in names} == {"up_proj", "k_proj"}
    assert isinstance(small, PartlyTrained)
    assert small.shrunk() is small


def test_experts_are_targets_and_allow_no_dropout() -> None:
    source = MODELS["qwen3_moe"]
    names = trained(source, Adapters(2, 4.0, 0.0, ("0.mlp.experts.*", "1.mlp.experts.down_proj")))
    assert {name.removeprefix("model.layers.").partition(".lora")[0] for name in names} == {
        "0.mlp.experts.gate_up_proj_adapter",
        "0.mlp.experts.down_proj_adapter",
        "1.mlp.experts.down_proj_adapter",
    }
    attention = Adapters(2, 4.0, 0.5, ("self_attn.*",))
    assert not any("experts" in name for name in trained(source, attention))
    told = PartlyTrained(source, attention).summary()
    assert told == "adapters of 8 linear layers, 0 weights of experts"
    with pytest.raises(ConfigError, match=r"experts\.gate_up_proj allow none") as caught:
        trained(source, Adapters(2, 4.0, 0.5, ()))
    assert "set it to 0" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("deepseek_v3", "shared_experts.up_proj"),
        ("glm4_moe", "0.mlp.gate_proj"),
        ("qwen2_moe", "shared_expert.down_proj"),
        ("mamba2", "out_proj"),
        ("falcon_h1", "mamba.out_proj"),
        ("gemma3", "vision_tower.*"),
    ],
)
def test_layers_whose_adapters_peft_does_not_load_have_none(name: str, target: str) -> None:
    source = HuggingFaceSource(config_of(name), 8)
    whole = PartlyTrained(source, ADAPTERS)
    assert "linear layers have none, such as" in whole.summary()
    assert not any(fnmatch.fnmatch(layer, f"*.{target}.weight") for layer in whole.adapted)
    with pytest.raises(ConfigError, match="names none of the layers that can have adapters"):
        trained(source, Adapters(2, 4.0, 0.0, (target,)))


class Conv1D(nn.Module):
    """Linear layer with weight [inputs, outputs], named and shaped as in `transformers`."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf, self.weight = outputs, nn.Parameter(torch.empty(inputs, outputs, device="meta"))


class Mixed(GPT3Source):
    """Model with both kinds of linear layers; the last one is an ordinary one."""

    def build(self, dtype: torch.dtype) -> nn.Module:
        return nn.Sequential(Conv1D(4, 8), nn.Linear(4, 2, device="meta"))

    def outside(self, dtype: torch.dtype) -> Outside:
        return outside_of(self.build(dtype))


def test_one_transposed_layer_is_told_wherever_it_is() -> None:
    """`peft` reads the key for every layer, and corrects it where the weight is not transposed."""
    _, told = PartlyTrained(Mixed(PLAIN), ADAPTERS).adapter()
    assert (told["target_modules"], told["fan_in_fan_out"]) == (["0", "1"], True)
