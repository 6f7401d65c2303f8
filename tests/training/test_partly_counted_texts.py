"""Texts of which a part counts: answers alone, each the same; documents of one sequence, each as
it would be alone."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers.loss.loss_utils import ForCausalLMLoss

from atom.base.errors import ConfigError
from atom.graph.program import compile_program
from atom.models.data.samples import Cut, Text, token_samples
from atom.models.data.token_file import TokenFile
from atom.models.data.tokenizer import ByteTokenizer
from atom.models.gpt3 import IGNORED
from atom.models.huggingface import HuggingFaceSource
from atom.models.source import materialised
from atom.swap.device import CpuDevice
from atom.training.replica.replica import Replica, ReplicaSettings
from tests.manual_clock import ManualClock
from tests.training.small_replica import RATE

SIZES = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = SIZES | {"model_type": "llama", "intermediate_size": 24, "num_key_value_heads": 1}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 4}
GPT2 = {
    "model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip


def require_same_gradient(
    source: HuggingFaceSource, batches: Sequence[Any], plain: Any, loss: Tensor, rtol: float
) -> None:
    """Require that one pass gives the loss of the plain model, and its gradients."""
    program = compile_program(source.build(torch.float32), batches[0])
    replica = Replica(program, None, ReplicaSettings(rate=RATE), CpuDevice(), ManualClock())
    first = dict(plain.named_parameters())
    replica.initialise(lambda name, shape: first[name].detach().clone())
    replica.run_pass(batches)
    loss.backward()
    assert replica.loss_sum / replica.sequences == pytest.approx(loss.item(), rel=rtol / 100)
    mean = replica.gradient_sums() / replica.sequences
    for name, value in first.items():
        found = program.layout.view(mean, name)
        torch.testing.assert_close(found, value.grad, rtol=rtol, atol=rtol / 1000)


# ---- answers

S, SHARE = 24, 0.25


def answers(vocabulary: int, sequences: int = 4) -> dict[str, Tensor]:
    """Return texts of which no target of the first counts, and of each further one some more."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(vocabulary, (sequences, S + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    for row in range(sequences):
        targets[row, 4 * row :] = IGNORED
    share = torch.full([sequences], SHARE)
    return {"tokens": tokens[:, :-1], "targets": targets, "target_share": share}


@pytest.mark.parametrize(
    ("vocabulary", "together"), [(60, 4), (259, 1), (259, 2)], ids=["at once", "one", "in chunks"]
)
def test_each_target_counts_the_same_in_whatever_micro_batch(
    vocabulary: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atom.models.gpt3.LEAST_CHUNK_TOKENS", 8)
    source = HuggingFaceSource(LLAMA | {"vocab_size": vocabulary}, S, ["target_share"])
    texts = answers(vocabulary)
    plain: Any = materialised(source, torch.float32, 1)
    parts = zip(*(value.split(together) for value in texts.values()), strict=True)
    batches = [source.text_batch(dict(zip(texts, part, strict=True))) for part in parts]
    whole = source.text_batch(texts)
    logits = plain.plain_forward(input_ids=whole["input_ids"], use_cache=False).logits
    counted = 4 * (S - 1) * SHARE
    loss = ForCausalLMLoss(logits, whole["labels"], vocabulary, num_items_in_batch=counted)
    require_same_gradient(source, batches, plain, loss, rtol=1e-4)


def test_a_model_with_a_loss_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = HuggingFaceSource(LLAMA, S, ["target_share"])
    model = materialised(source, torch.float32, 1)
    monkeypatch.setattr(
        type(model), "loss_function", staticmethod(lambda logits, labels, **more: logits.sum())
    )
    with pytest.raises(ConfigError, match="its own loss"):
        model(**source.text_batch(answers(64, 1)))


# ---- documents

WINDOW, STOP = 12, 63


def packed() -> dict[str, Tensor]:
    """Return two windows of documents, which end within a document."""
    generator, end = torch.Generator().manual_seed(7), torch.tensor([STOP])
    documents = [torch.randint(STOP, (n,), generator=generator) for n in (5, 1, 4, 8, 6)]
    tokens = torch.cat([part for document in documents for part in (document, end)])
    cut = Cut(0.0, WINDOW, 1 << 10, separator=STOP)
    samples = token_samples([Text(TokenFile(tokens, ""))], ByteTokenizer(), cut, 0)
    return samples.train[""].batch([0, 1])


@pytest.mark.parametrize("config", [MISTRAL, GPT2], ids=lambda c: str(c["model_type"]))
def test_the_loss_and_gradients_are_those_of_the_documents_alone(config: dict[str, Any]) -> None:
    source, batch = HuggingFaceSource(config, WINDOW, ["positions"]), packed()
    source.inspect(0)
    assert batch["positions"].tolist() == [
        [0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2, 3],
        [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1],
    ]
    plain: Any = materialised(source, torch.float32, 1)
    losses = []
    for tokens, positions in zip(batch["tokens"], batch["positions"], strict=True):
        begins = [*torch.nonzero(positions == 0).flatten().tolist(), WINDOW]
        parts = [tokens[a:b] for a, b in pairwise(begins)]
        alone = [plain.plain_forward(input_ids=part.unsqueeze(0)).logits[0] for part in parts]
        targets = torch.cat([tokens[1:], torch.tensor([IGNORED])])
        losses.append(cross_entropy(torch.cat(alone), targets))
    loss = torch.stack(losses).mean()
    require_same_gradient(source, [source.text_batch(batch)], plain, loss, rtol=1e-3)


def test_an_architecture_that_looks_beyond_is_refused() -> None:
    bloom = SIZES | {"model_type": "bloom", "n_layer": 2, "n_head": 2}
    with pytest.raises(ConfigError, match="attends beyond the document"):
        HuggingFaceSource(bloom, WINDOW, ["positions"]).inspect(0)
