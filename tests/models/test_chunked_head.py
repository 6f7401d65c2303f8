"""Language models of `transformers` whose loss comes in chunks: the same loss, fewer logits."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.graph.verify import verify_against_eager
from atom.models.huggingface import HuggingFaceSource
from atom.models.source import materialised

pytest.importorskip("transformers")

VOCABULARY, TOKENS = 96, 320
COMMON = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": TOKENS,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": VOCABULARY,
    "n_positions": TOKENS,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""Dropout 0.1, and a head tied to the embedding."""
CONFIGS = {
    "llama": COMMON | {"model_type": "llama"},
    "gpt2": GPT2,
    "mixtral": COMMON
    | {"model_type": "mixtral", "num_local_experts": 2, "output_router_logits": True},
}
CAPPED = COMMON | {"model_type": "gemma2", "head_dim": 8, "final_logit_softcapping": 30.0}


def source(config: dict[str, Any]) -> HuggingFaceSource:
    return HuggingFaceSource.of_text(json.dumps(config), TOKENS)


def batch(seed: int) -> dict[str, Tensor]:
    ids = torch.randint(VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids.clone()}


def whole(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """As the library computes it."""
    loss: Tensor = model.plain_forward(**given, use_cache=False).loss  # type: ignore[operator]
    return loss


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_and_its_gradients_are_the_librarys(name: str) -> None:
    model = materialised(source(CONFIGS[name]), torch.float32, seed=1)
    given = batch(1)
    given["labels"][0, 40:90] = -100
    results = []
    for compute in (lambda: model(**given), lambda: whole(model, given)):
        torch.manual_seed(0)
        loss = compute()
        results.append((loss.item(), torch.autograd.grad(loss, list(model.parameters()))))
    (chunked, gradients), (expected, plain) = results
    assert chunked == pytest.approx(expected, rel=1e-6)
    for found, wanted in zip(gradients, plain, strict=True):
        assert (found - wanted).norm() <= 1e-5 * wanted.norm()
    assert not model.get_output_embeddings()._forward_hooks
    assert "_loss_function" not in vars(model)


@pytest.mark.parametrize("name", CONFIGS)
def test_sub_models_hold_one_chunk_and_give_the_bits(name: str) -> None:
    model = materialised(source(CONFIGS[name]), torch.float32, seed=1)
    graph = trace(model, batch(0))
    assert len(graph.recomputed) == 2
    logits = [spec.shape for spec in graph.specs.values() if spec.shape[-1:] == (VOCABULARY,)]
    made = {graph.specs[call].shape for call in graph.calls if call in graph.specs}
    assert (1, TOKENS, VOCABULARY) in logits, "the call is traced"
    assert (1, TOKENS, VOCABULARY) not in made, "and dropped"
    assert (TOKENS // 2, VOCABULARY) in made
    verify_against_eager(model, build_program(graph), batch(1))


def test_logits_that_something_is_done_to_stay_together() -> None:
    model = materialised(source(CAPPED), torch.float32, seed=1)
    assert torch.equal(model(**batch(1)), whole(model, batch(1)))
    graph = trace(model, batch(0))
    assert graph.recomputed == ()
    verify_against_eager(model, build_program(graph), batch(1))
