"""Loss on answers only: each answer counts the same, whatever its micro-batch has."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss

from atom.base.errors import ConfigError
from atom.graph.program import compile_program
from atom.models.gpt3 import IGNORED
from atom.models.huggingface import HuggingFaceSource
from atom.models.source import materialised
from atom.swap.device import CpuDevice
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock
from tests.training.small_replica import RATE

S = 24
LLAMA = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 259,
    "max_position_embeddings": 64,
}  # fmt: skip
SHARE = 0.25


def a_batch(sequences: int) -> tuple[Tensor, Tensor]:
    """Tokens, and targets: of the first none counts, of each further one some more."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(259, (sequences, S + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    for row in range(sequences):
        targets[row, 4 * row :] = IGNORED
    return tokens[:, :-1], targets


def a_text(tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    share = torch.full([len(tokens)], SHARE)
    return {"tokens": tokens, "targets": targets, "target_share": share}


@pytest.mark.parametrize("vocabulary", [60, 259], ids=["all at once", "in chunks"])
@pytest.mark.parametrize("together", [1, 2, 4])
def test_each_target_counts_the_same_in_whatever_micro_batch(
    vocabulary: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atom.models.gpt3.LEAST_CHUNK_TOKENS", 8)
    source = HuggingFaceSource(LLAMA | {"vocab_size": vocabulary}, S, ["target_share"])
    tokens, targets = a_batch(4)
    tokens, targets = tokens % vocabulary, torch.where(targets < 0, IGNORED, targets % vocabulary)
    plain: Any = materialised(source, torch.float32, 1)
    batches = [
        source.text_batch(a_text(*pair))
        for pair in zip(tokens.split(together), targets.split(together), strict=True)
    ]
    program = compile_program(source.build(torch.float32), batches[0])
    replica = Replica(program, None, ReplicaSettings(rate=RATE), CpuDevice(), ManualClock())
    first = dict(plain.named_parameters())
    replica.initialise(lambda name, shape: first[name].detach().clone())
    replica.run_pass(batches)

    whole = source.text_batch(a_text(tokens, targets))
    logits = plain.plain_forward(input_ids=whole["input_ids"], use_cache=False).logits
    loss = ForCausalLMLoss(
        logits, whole["labels"], vocabulary, num_items_in_batch=4 * (S - 1) * SHARE
    )
    loss.backward()
    assert replica.loss_sum / replica.sequences == pytest.approx(loss.item(), rel=1e-6)
    mean = replica.gradient_sums() / replica.sequences
    for name, value in plain.named_parameters():
        found = program.layout.view(mean, name)
        torch.testing.assert_close(found, value.grad, rtol=1e-4, atol=1e-7)


def test_a_model_with_a_loss_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = HuggingFaceSource(LLAMA, S, ["target_share"])
    model = materialised(source, torch.float32, 1)
    monkeypatch.setattr(
        type(model), "loss_function", staticmethod(lambda logits, labels, **more: logits.sum())
    )
    with pytest.raises(ConfigError, match="its own loss"):
        model(**source.text_batch(a_text(*a_batch(1))))
