"""Causal language models by their config: names, values, masks, loss and refusals."""

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

from atom.base.errors import ConfigError
from atom.graph.program import build_program, compile_program
from atom.graph.trace import trace
from atom.graph.verify import verify_against_eager
from atom.models.huggingface import HuggingFaceSource
from atom.models.huggingface_config import (
    MAX_CONFIG_BYTES,
    MAX_DEPTH,
    canonical_config,
    read_config,
)
from atom.models.source import install_extra, materialised
from tests.architectures.configs import config_of

transformers = pytest.importorskip("transformers")

LLAMA = {**config_of("llama"), "num_hidden_layers": 3}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "vocab_size": 64,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CONFIGS = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "tied-qwen2": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4},
}
SEQUENCE = 16


def source(config: dict[str, Any], tokens: int = SEQUENCE) -> HuggingFaceSource:
    return HuggingFaceSource(read_config(json.dumps(config)), tokens)


def windows(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens, targets) as a run's text gives them."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(64, (2, SEQUENCE + 1), generator=generator)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


@pytest.fixture(params=CONFIGS, scope="module")
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return CONFIGS[request.param]


def library_model(config: dict[str, Any]) -> nn.Module:
    parsed = transformers.AutoConfig.for_model(**config)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(parsed)
    return model


def test_names_and_ties_are_the_library_s(config: dict[str, Any]) -> None:
    built = source(config).build(torch.float32)
    own = library_model(config)
    assert all(parameter.is_meta for parameter in built.parameters())
    assert [n for n, _ in built.named_parameters()] == [n for n, _ in own.named_parameters()]
    assert built.state_dict().keys() == own.state_dict().keys()
    expected = dict(own.named_buffers())
    for name, buffer in built.named_buffers():
        assert torch.equal(buffer, expected[name]), name


def test_values_are_drawn_as_the_library_draws_them(config: dict[str, Any]) -> None:
    model = materialised(source(config), torch.float32, seed=1)
    torch.manual_seed(0)
    own = dict(library_model(config).named_parameters())
    for name, parameter in model.named_parameters():
        spread, expected = parameter.std().item(), own[name].std().item()
        assert spread == pytest.approx(expected, rel=0.25, abs=1e-9), name
        assert parameter.mean().item() == pytest.approx(own[name].mean().item(), abs=5e-3), name
    if config["model_type"] == "gpt2":  # scaled by an enclosing module, not by the layer itself
        scaled = model.get_parameter("transformer.h.0.mlp.c_proj.weight").std().item()
        assert scaled == pytest.approx(0.02 / 6**0.5, rel=0.1)


def test_values_depend_on_seed_and_name_alone(config: dict[str, Any]) -> None:
    shapes = {n: tuple(p.shape) for n, p in source(config).build(torch.float32).named_parameters()}
    values = source(config).initial_values(5)
    forwards = {name: values(name, shape) for name, shape in shapes.items()}
    torch.manual_seed(99)
    torch.set_num_threads(4)
    values = source(config).initial_values(5)
    for name in reversed(shapes):
        assert torch.equal(values(name, shapes[name]), forwards[name]), name
    assert torch.get_num_threads() == 4
    other = source(config).initial_values(6)
    name = max(shapes, key=lambda n: shapes[n])
    assert not torch.equal(other(name, shapes[name]), forwards[name])


def test_the_loss_is_the_library_s_own(config: dict[str, Any]) -> None:
    own_source = source(config)
    model = materialised(own_source, torch.float32, seed=1).eval()
    own = library_model(config).eval()
    own.load_state_dict(model.state_dict())
    tokens, targets = windows()
    loss = model(**own_source.text_batch({"tokens": tokens, "targets": targets}))
    # By hand: every token but the last predicts the one after it.
    logits = own(input_ids=tokens).logits[:, :-1].float()
    expected = nn.functional.cross_entropy(logits.flatten(0, 1), targets[:, :-1].flatten())
    assert torch.equal(loss, own(input_ids=tokens, labels=tokens).loss)
    inputs, labels = own_source.text_batch({"tokens": tokens, "targets": targets}).values()
    assert inputs.data_ptr() != labels.data_ptr(), "each is a tensor of its own"
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_the_shrink_is_bit_equal_to_eager(name: str) -> None:
    small = source(CONFIGS[name]).shrunk()
    model = materialised(small, torch.float32, seed=1)
    small.inspect(seed=1)
    program = compile_program(small.build(torch.float32), small.example_batch(2))
    verify_against_eager(
        model, program, small.text_batch(dict(zip(("tokens", "targets"), windows(), strict=True)))
    )
    layers = {name for name, _ in model.named_modules() if name.endswith((".0", ".1", ".2"))}
    assert not any(name.endswith((".h.2", ".layers.2")) for name in layers)


def test_choices_of_implementation_and_code_are_left_out() -> None:
    tricks = {
        "_attn_implementation": "somebody/kernel",
        "attn_implementation": "flash_attention_2",
        "auto_map": {"AutoModelForCausalLM": "evil.py--Evil"},
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "nested": {"_commit_hash": "x", "kept": [1, {"auto_map": 2}]},
    }
    kept = read_config(json.dumps(LLAMA | tricks))
    assert kept == LLAMA | {"nested": {"kept": [1, {}]}}
    del tricks["nested"]
    assert canonical_config(json.dumps(LLAMA | tricks)) == canonical_config(
        json.dumps(dict(reversed(LLAMA.items())))
    )
    built = source(LLAMA | {"torch_dtype": "float64"}).build(torch.bfloat16)
    assert {parameter.dtype for parameter in built.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for _, buffer in built.named_buffers()} == {torch.float32}


def test_null_is_a_value() -> None:
    """Mistral's window is 4096 by default, and null in configs of models without a window."""
    mistral = LLAMA | {"model_type": "mistral", "max_position_embeddings": 2**14}
    for more, window in (({}, 4096), ({"sliding_window": None}, None)):
        assert source(mistral | more).build(torch.float32).config.sliding_window == window
        assert source(mistral | more).outside(torch.float32).config["sliding_window"] == window


ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": SEQUENCE - 1}
LONG_ROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        (LONG_ROPE, SEQUENCE),
        (LONG_ROPE, SEQUENCE // 2),
        ({"rope_type": "dynamic"}, SEQUENCE),
    ],
    ids=["long", "long, few tokens", "dynamic"],
)
def test_frequencies_are_those_of_the_run_s_length(rope: dict[str, Any], tokens: int) -> None:
    config = LLAMA | {"rope_parameters": ROPE | rope}
    model = materialised(source(config, tokens), torch.float32, seed=1)
    own = library_model(config)
    own.load_state_dict(model.state_dict())
    ids = windows()[0][:, :tokens].contiguous()
    batch = {"input_ids": ids, "labels": ids.clone()}
    assert torch.equal(model(**batch), own(**batch).loss)
    verify_against_eager(model, compile_program(model, batch), batch)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model_type": "no_such_model"}, "knows no model_type 'no_such_model'"),
        ({"model_type": "../llama"}, "names no model_type"),
        ({"model_type": "t5"}, "t5 is not a causal language model"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "not a causal language model"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000"),
        ({"text_config": {"n_layer": 5000}}, "n_layer is 5000"),
        ({"hidden_size": 2**40}, "the config.json holds 1099511627776"),
        ({"hidden_act": "no-such-act"}, "cannot use the config"),
        ({"max_position_embeddings": 8}, "sequences of 16 tokens, but the model has 8"),
    ],
)
def test_what_cannot_be_trained_is_named(change: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        source(LLAMA | change).build(torch.float32)
    assert what in caught.value.message
    assert caught.value.hint


FORMS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan, "1e999": math.inf}


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_json_lacks_are_read_in_both_forms(form: str, tagged: bool) -> None:
    mark = json.dumps({"__float__": form}) if tagged and form != "1e999" else form
    text = json.dumps(LLAMA | {"limits": [0.5, "X"], "rms_norm_eps": "X"}).replace('"X"', mark)
    kept = read_config(text)
    assert str(kept["limits"][1]) == str(kept["rms_norm_eps"]) == str(FORMS[form])
    assert canonical_config(canonical_config(text)) == canonical_config(text)
    own = HuggingFaceSource(kept, SEQUENCE)
    own.require_config(text)
    written = own.outside(torch.float32).config
    assert written is not None
    name = "Infinity" if form == "1e999" else form
    assert written["rms_norm_eps"] == {"__float__": name}, "as transformers writes it"
    own.require_config(json.dumps(dict(written), allow_nan=False))
    with pytest.raises(ConfigError, match="limits"):
        own.require_config(json.dumps(LLAMA))


@pytest.mark.parametrize("value", [{"__float__": "1"}, {"__float__": ["NaN"]}, {"__float__": 1}])
def test_other_tags_are_left_out(value: object) -> None:
    assert read_config(json.dumps(LLAMA | {"note": value}))["note"] == {}


def nested(levels: int) -> str:
    return f'{{"model_type": "llama", "note": {"[" * levels}1{"]" * levels}}}'


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[1]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"model_type": NaN}', "names no model_type"),
        ("[" * 5000, "the config"),
        (json.dumps(LLAMA | {"rope_theta": 2**31 + 1}), "the config.json holds 2147483649"),
        (json.dumps(LLAMA | {"architectures": ["\x1b[2J"]}), "control characters"),
        (json.dumps(LLAMA | {"note": {"\x9b": 1}}), "control characters"),
        (json.dumps(LLAMA | {"note": "x" * MAX_CONFIG_BYTES}), "longer than 1024 KiB"),
        (nested(MAX_DEPTH), "nested more than 32 deep"),
    ],
    ids=range(9),
)
def test_what_is_no_config_is_named(text: str, what: str) -> None:
    assert "note" in read_config(nested(MAX_DEPTH - 1))
    with pytest.raises(ConfigError, match=what):
        read_config(text)


def test_a_stranger_s_parameters_take_no_memory() -> None:
    huge = {"hidden_size": 2**20, "intermediate_size": 2**20, "max_position_embeddings": 2**30}
    model = source(LLAMA | huge).build(torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) > 2**40


def test_a_stranger_s_parameters_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atom.models.on_meta.MAX_PARAMETERS", 10)
    with pytest.raises(ConfigError, match="more than 10 parameter tensors") as refusal:
        source(LLAMA).build(torch.float32)
    assert refusal.value.hint


def test_an_encoder_that_sees_later_tokens_is_refused() -> None:
    bert = config_of("bert")
    for is_decoder in (False, True):
        small = source(bert | {"is_decoder": is_decoder}).shrunk()
        if is_decoder:
            small.inspect(seed=1)
        else:
            with pytest.raises(ConfigError, match="looks at later tokens"):
                small.inspect(seed=1)


def test_without_the_library_the_command_to_install_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    from atom.models.huggingface_library import library

    library.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    try:
        with pytest.raises(ConfigError) as caught:
            source(LLAMA)
        assert caught.value.hint == f"`{install_extra('hf')}`"
    finally:
        library.cache_clear()


# ---- the loss in chunks: the same loss, fewer logits

VOCABULARY, TOKENS = 160, 320
SHORT = {"num_hidden_layers": 1, "vocab_size": VOCABULARY, "max_position_embeddings": TOKENS}
LONG = {
    "llama": LLAMA | SHORT,
    "gpt2": GPT2 | {"n_layer": 1, "vocab_size": VOCABULARY, "n_positions": TOKENS},
    "mixtral": LLAMA
    | SHORT
    | {"model_type": "mixtral", "num_local_experts": 2, "output_router_logits": True},
}
"""Configs of short models; GPT-2 has dropout of 0.1 and a tied head."""
CAPPED = LLAMA | SHORT | {"model_type": "gemma2", "head_dim": 8, "final_logit_softcapping": 30.0}


def batch(seed: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.parametrize("name", LONG)
def test_the_loss_and_its_gradients_are_the_librarys(name: str) -> None:
    model = materialised(source(LONG[name], TOKENS), torch.float32, seed=1)
    given = batch(1)
    given["labels"][0, 40:90] = -100
    results = []
    for compute in (lambda: model(**given), lambda: model.plain_forward(**given).loss):
        torch.manual_seed(0)
        loss = compute()
        results.append((loss.item(), torch.autograd.grad(loss, list(model.parameters()))))
    (chunked, gradients), (expected, plain) = results
    assert chunked == pytest.approx(expected, rel=1e-6)
    for found, wanted in zip(gradients, plain, strict=True):
        assert (found - wanted).norm() <= 1e-5 * wanted.norm()
    assert not model.get_output_embeddings()._forward_hooks
    assert "_loss_function" not in vars(model)


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_sub_models_hold_one_chunk_and_give_the_bits(name: str) -> None:
    model = materialised(source(LONG[name], TOKENS), torch.float32, seed=1)
    graph = trace(model, batch(0))
    assert len(graph.recomputed) == 2
    logits = [spec.shape for spec in graph.specs.values() if spec.shape[-1:] == (VOCABULARY,)]
    made = {graph.specs[call].shape for call in graph.calls if call in graph.specs}
    assert (1, TOKENS, VOCABULARY) in logits, "the call is traced"
    assert (1, TOKENS, VOCABULARY) not in made, "and dropped"
    assert (TOKENS // 2, VOCABULARY) in made
    verify_against_eager(model, build_program(graph), batch(1))


def test_logits_that_something_is_done_to_stay_together() -> None:
    model = materialised(source(CAPPED, TOKENS), torch.float32, seed=1)
    assert torch.equal(model(**batch(1)), model.plain_forward(**batch(1)).loss)
    graph = trace(model, batch(0))
    assert graph.recomputed == ()
    verify_against_eager(model, build_program(graph), batch(1))
