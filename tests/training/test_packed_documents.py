"""Documents of one sequence see nothing of each other: each is as it would be alone."""

from itertools import pairwise
from typing import Any

import pytest
import torch

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

S, STOP = 12, 63
SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = SMALL | {"model_type": "llama", "intermediate_size": 24, "num_key_value_heads": 1}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 4}
GPT2 = {
    "model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
LENGTHS = (5, 1, 4, 8, 6)


def documents() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(STOP, (n,), generator=generator) for n in LENGTHS]


def packed() -> dict[str, torch.Tensor]:
    """Two windows, which end within a document."""
    end = torch.tensor([STOP])
    tokens = torch.cat([part for document in documents() for part in (document, end)])
    cut = Cut(0.0, S, 1 << 10, separator=STOP)
    samples = token_samples([Text(TokenFile(tokens, ""))], ByteTokenizer(), cut, 0)
    return samples.train[""].batch([0, 1])


def test_positions_begin_with_each_document() -> None:
    assert packed()["positions"].tolist() == [
        [0, 1, 2, 3, 4, 5, 0, 1, 0, 1, 2, 3],
        [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1],
    ]


@pytest.mark.parametrize("config", [LLAMA, MISTRAL, GPT2], ids=lambda c: str(c["model_type"]))
def test_the_loss_and_gradients_are_those_of_the_documents_alone(config: dict[str, Any]) -> None:
    source = HuggingFaceSource(config, S, ["positions"])
    source.inspect(0)
    batch = packed()
    plain: Any = materialised(source, torch.float32, 1)
    first = dict(plain.named_parameters())
    program = compile_program(source.build(torch.float32), source.example_batch(2))
    replica = Replica(program, None, ReplicaSettings(rate=RATE), CpuDevice(), ManualClock())
    replica.initialise(lambda name, shape: first[name].detach().clone())
    replica.run_pass([source.text_batch(batch)])

    losses = []
    for tokens, positions in zip(batch["tokens"], batch["positions"], strict=True):
        begins = [*torch.nonzero(positions == 0).flatten().tolist(), S]
        parts = [tokens[a:b] for a, b in pairwise(begins)]
        alone = [plain.plain_forward(input_ids=part.unsqueeze(0)).logits[0] for part in parts]
        targets = torch.cat([tokens[1:], torch.tensor([IGNORED])])
        losses.append(torch.nn.functional.cross_entropy(torch.cat(alone), targets))
    loss = torch.stack(losses).mean()
    loss.backward()
    assert replica.loss_sum / 2 == pytest.approx(loss.item(), rel=1e-5)
    mean = replica.gradient_sums() / 2
    for name, value in plain.named_parameters():
        torch.testing.assert_close(
            program.layout.view(mean, name), value.grad, rtol=1e-3, atol=1e-6
        )


def test_an_architecture_that_looks_beyond_is_refused() -> None:
    bloom = SMALL | {"model_type": "bloom", "n_layer": 2, "n_head": 2}
    with pytest.raises(ConfigError, match="attends beyond the document"):
        HuggingFaceSource(bloom, S, ["positions"]).inspect(0)
