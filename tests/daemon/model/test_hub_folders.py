"""Folders in the forms that the hub has: old names, constants, experts, encoders, quantization."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from atom.base.errors import ConfigError
from atom.daemon.model.weight_files import given_values
from atom.models.huggingface import HuggingFaceSource
from atom.models.huggingface_config import read_config
from tests.architectures.configs import Config, config_of
from tests.daemon.model.kept_runs import Folder, round_zero
from tests.daemon.tiny_run import LLAMA

Weights = dict[str, Tensor]
TOKENS, WHOLE = 8, "model.safetensors"


def saved(folder: Path, config: Config) -> Any:
    """Save a model of the library into a folder, and return it."""
    known = transformers.AutoConfig.for_model(**config)
    named = config.get("architectures")
    model: Any
    if named:
        model = getattr(transformers, named[0])(known)
    else:
        model = transformers.AutoModelForCausalLM.from_config(known)
    model.float().save_pretrained(folder)
    return model


def edited(folder: Path, edit: Callable[[Weights], object]) -> None:
    weights = load_file(folder / WHOLE)
    edit(weights)
    save_file(weights, folder / WHOLE, {"format": "pt"})


def read(folder: Path, wanted: Weights, config: Config | None = None) -> Weights:
    """Return the parameters that a run reads from the folder; None: its config is the folder's."""
    text = (folder / "config.json").read_text()
    source = HuggingFaceSource(config or read_config(text), TOKENS)
    value_of = given_values(source, folder)
    return {name: value_of(name, tuple(value.shape)) for name, value in wanted.items()}


def parameters(model: Any) -> Weights:
    return {name: value.detach() for name, value in model.named_parameters()}


# ---- names that the library ignores or renames


def more(*names: str) -> Callable[[Weights], None]:
    """Return an edit that adds tensors with these names."""
    return lambda weights: weights.update({name: torch.ones(2) for name in names})


def renamed(old: str, new: str) -> Callable[[Weights], None]:
    def edit(weights: Weights) -> None:
        for name in list(weights):
            weights[name.replace(old, new)] = weights.pop(name)

    return edit


def per_expert(weights: Weights) -> None:
    assert any(".experts.3." in name for name in weights), "the library writes the old form"


QWEN = config_of("qwen3_5")["text_config"]
GPT = {**config_of("gpt2"), "n_positions": 16}
FORMS: dict[str, tuple[Config, Callable[[Weights], object]]] = {
    "llama's frequencies": (
        config_of("llama"), more(*(f"model.layers.{n}.self_attn.rotary_emb.inv_freq" for n in "01"))
    ),
    "gpt2's masks": (GPT, more("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias")),
    "gpt2 of the hub": (GPT, renamed("transformer.", "")),
    "gpt_neox's constants": (
        config_of("gpt_neox"),
        more(
            *(f"gpt_neox.layers.0.attention.{name}" for name in ("bias", "masked_bias")),
            "gpt_neox.layers.1.attention.rotary_emb.inv_freq",
        ),
    ),
    "opt without its prefix": (config_of("opt"), renamed("model.decoder.", "decoder.")),
    "bert's old names": (
        {**config_of("bert"), "is_decoder": True},
        lambda w: (
            renamed("LayerNorm.weight", "LayerNorm.gamma")(w),
            renamed("LayerNorm.bias", "LayerNorm.beta")(w),
            more("bert.embeddings.position_ids")(w),
        ),
    ),
    "experts one by one": (config_of("qwen3_moe"), per_expert),
    "mixtral's experts": (config_of("mixtral"), per_expert),
    "deepseek's further layer": (config_of("deepseek_v3"), more("model.layers.61.eh_proj.weight")),
    "the text of a Qwen 3.5": (
        {**QWEN, "model_type": "qwen3_5_text"}, more("mtp.norm.weight", "model.visual.x.weight")
    ),
    "a tied head": (
        config_of("gemma"),
        lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}),
    ),
    "an old Gemma 3": (config_of("gemma3"), dict),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_is_read_as_the_library_reads_it(form: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config, edit = FORMS[form]
    wanted = parameters(saved(tmp_path, config))
    edited(tmp_path, edit)
    for name, value in read(tmp_path, wanted).items():
        assert torch.equal(value, wanted[name]), name


def test_weights_of_16_bits_are_read(tmp_path: Path) -> None:
    wanted = parameters(saved(tmp_path, config_of("llama")))
    edited(tmp_path, lambda w: w.update({name: value.bfloat16() for name, value in w.items()}))
    for name, value in read(tmp_path, wanted).items():
        assert torch.equal(value, wanted[name].bfloat16().float()), name


NORM = "model.norm.weight"
TIED = {**config_of("llama"), "tie_word_embeddings": True}
ODD = ("model.layers.0.self_attn.inv_freqs", "odd", "lm_head.bias")


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        *((more(name), f"tensors that the model lacks: {name}") for name in ODD),
        (lambda w: w.pop(NORM), f"does not hold {NORM}"),
        (lambda w: w.update({NORM: torch.ones(33)}), f"other shapes: {NORM} [33], not [32]"),
        (lambda w: w[NORM].fill_(torch.nan), f"{NORM} has values that are not finite"),
        (lambda w: w.update({NORM: w[NORM].int()}), f"{NORM} holds torch.int32, not weights"),
        (
            lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"] + 1}),
            "differ, the model ties them",
        ),
        (lambda w: w.update({"norm.weight": w[NORM] + 1}), f"both {NORM} and norm.weight: one"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    edit: Callable[[Weights], object], said: str, tmp_path: Path
) -> None:
    wanted = parameters(saved(tmp_path, TIED))
    edited(tmp_path, edit)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, wanted)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": 9.0}),
        ("rms_norm_eps", 0.5),
        ("num_attention_heads", 8),
    ],
)
def test_another_model_of_the_same_shapes_is_refused(
    key: str, value: object, tmp_path: Path
) -> None:
    wanted = parameters(saved(tmp_path, TIED))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value, "head_dim": 8}))
    with pytest.raises(ConfigError, match=f"the folder's model has {key} = "):
        read(tmp_path, wanted, TIED)


@pytest.mark.parametrize(
    ("lost", "said"), [(True, "missing keys"), (False, "the config")], ids=["lost", "other shape"]
)
def test_weights_that_the_library_cannot_convert_are_refused(
    lost: bool, said: str, tmp_path: Path
) -> None:
    def edit(weights: Weights) -> None:
        name = next(name for name in weights if name.endswith("o_proj.weight"))
        del weights[name]
        weights.update({} if lost else {name: torch.ones(3)})

    wanted = parameters(saved(tmp_path, config_of("mixtral")))
    edited(tmp_path, edit)
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, wanted)


# ---- quantized weights

FP8 = {**config_of("llama"), "hidden_size": 128, "intermediate_size": 256}
FOUR_BITS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
MXFP4 = {**config_of("gpt_oss"), "hidden_size": 64, "intermediate_size": 64}


def quantized(folder: Path, method: str, **more: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, **more}
    (folder / "config.json").write_text(json.dumps(config))


def test_weights_of_8_bits_are_dequantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = parameters(saved(tmp_path, FP8))

    def edit(weights: Weights) -> None:
        for name in [each for each in weights if each.endswith("mlp.up_proj.weight")]:
            blocks = weights[name].view(2, 128, 1, 128)
            scale = blocks.abs().amax((1, 3)) / 448
            narrow = (blocks / scale[:, None, :, None]).view(256, 128)
            weights[name] = narrow.to(torch.float8_e4m3fn)
            weights[f"{name}_scale_inv"] = scale
            wide = weights[name].float().view(2, 128, 1, 128) * scale[:, None, :, None]
            wanted[name] = wide.view(256, 128)

    edited(tmp_path, edit)
    kept = [r".*self_attn.*", r".*gate_proj", r".*down_proj", "lm_head"]
    quantized(tmp_path, "fp8", weight_block_size=[128, 128], modules_to_not_convert=kept)
    with monkeypatch.context() as patch:
        place = "transformers.quantizers.quantizer_finegrained_fp8.is_accelerate_available"
        patch.setattr(place, lambda: False)
        with pytest.raises(ConfigError, match="which need a package") as caught:
            read(tmp_path, wanted)
        assert "pip install accelerate" in caught.value.hint
    for name, value in read(tmp_path, wanted).items():
        assert torch.allclose(value, wanted[name], atol=1e-3), name


def test_weights_of_4_bits_are_dequantized(tmp_path: Path) -> None:
    wanted = parameters(saved(tmp_path, MXFP4))
    generator = torch.Generator().manual_seed(1)

    def edit(weights: Weights) -> None:
        for name in [each for each in weights if each.endswith(("gate_up_proj", "down_proj"))]:
            experts, inputs, outputs = weights.pop(name).shape
            blocks = experts, outputs, inputs // 32
            codes = torch.randint(8, (*blocks, 32), generator=generator)
            weights[f"{name}_blocks"] = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
            weights[f"{name}_scales"] = torch.full(blocks, 125, dtype=torch.uint8)
            values = (FOUR_BITS[codes] / 4).view(experts, outputs, inputs)
            wanted[name] = values.transpose(1, 2).contiguous()

    edited(tmp_path, edit)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    quantized(tmp_path, "mxfp4", modules_to_not_convert=kept)
    for name, value in read(tmp_path, wanted).items():
        assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize(
    ("method", "said", "hint"),
    [
        ("bitsandbytes", "which need a package", "pip install bitsandbytes"),
        ("compressed-tensors", "which need a package", "pip install compressed-tensors"),
        ("awq", "quantized by 'awq'", "weights in 16 or 32 bits"),
        ("gptq", "quantized by 'gptq'", "weights in 16 or 32 bits"),
        ("odd\x1b", "quantized by 'odd", "weights in 16 or 32 bits"),
    ],
)
def test_other_quantization_is_named(method: str, said: str, hint: str, tmp_path: Path) -> None:
    wanted = parameters(saved(tmp_path, config_of("llama")))
    quantized(tmp_path, method, load_in_4bit=True)
    with pytest.raises(ConfigError, match=said) as caught:
        read(tmp_path, wanted)
    assert hint in caught.value.hint
    assert caught.value.message.isprintable()


# ---- models with encoders of images


@pytest.mark.parametrize("name", ["mistral3", "qwen3_5"])
def test_text_is_trained_and_the_encoder_is_carried(folder: Folder, name: str) -> None:
    config = config_of(name)
    model = transformers.AutoModelForImageTextToText.from_config(
        transformers.AutoConfig.for_model(**config)
    ).float()
    model.save_pretrained(folder.root / "base")
    (folder.root / "config.json").write_text((folder.root / "base" / "config.json").read_text())
    member = folder.found(LLAMA, weights=folder.root / "base")
    trained = {spec.name for spec in member.recipe.graph.layout.trained}
    for part, value in member.replica.export_parameters().items():
        value.add_(float(part in trained))
    folder.as_first_state(member)
    loaded, told = type(model).from_pretrained(folder.export(), output_loading_info=True)
    assert not any(told.values())
    for part, value in loaded.named_parameters():
        assert torch.equal(value, model.get_parameter(part) + (part in trained)), part
    of_images = {n for n, _ in model.named_parameters() if "vis" in n or "projector" in n}
    assert trained == {n for n, _ in model.named_parameters()} - of_images
    joiner = folder.enter(member)
    assert round_zero(joiner, weights=folder.root / "base").fill_frozen()


VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
TEXT = {key: value for key, value in config_of("qwen3").items() if key != "model_type"}
ENCODERS: dict[str, Config] = {
    "LlavaForConditionalGeneration": {
        "model_type": "llava",
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**VISION, "model_type": "clip_vision_model"},
    },
    "SmolVLMForConditionalGeneration": {
        "model_type": "smolvlm",
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": VISION,
        "scale_factor": 1,
    },
    "InternVLForConditionalGeneration": {
        "model_type": "internvl",
        "text_config": {**TEXT, "model_type": "qwen2"},
        "vision_config": {**VISION, "image_size": [28, 28], "patch_size": [14, 14]},
    },
    "Cohere2VisionForConditionalGeneration": {
        "model_type": "cohere2_vision",
        "text_config": {**TEXT, "model_type": "cohere2"},
        "vision_config": VISION,
    },
    "VoxtralForConditionalGeneration": {
        "model_type": "voxtral",
        "text_config": {**TEXT, "model_type": "llama"},
        "audio_config": VISION,
    },
}


@pytest.mark.parametrize("name", ENCODERS)
def test_the_named_class_is_built_and_its_folder_read(name: str, tmp_path: Path) -> None:
    wanted = parameters(saved(tmp_path, {**ENCODERS[name], "architectures": [name]}))
    for part, value in read(tmp_path, wanted).items():
        assert torch.equal(value, wanted[part]), part
    source = HuggingFaceSource(read_config((tmp_path / "config.json").read_text()), TOKENS)
    assert source.name == name
    outside = source.outside(torch.float32)
    written = {outside.written_names.get(place.name, place.name) for place in outside.places}
    assert written == load_file(tmp_path / WHOLE).keys()
    allowed = source.adaptable(source.build(torch.float32))
    assert any(part.endswith("q_proj") for part in allowed)
    assert not any("vision" in part or "audio" in part for part in allowed)
