"""The same training without a swarm: one process, one module, the whole batch at once."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from atom.config.load import run_from_text
from atom.config.run_file import RunFile
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.data.corpus import Limits
from atom.models.data.dataset import Dataset, open_dataset
from atom.models.data.files import stdlib_corpus
from atom.models.gpt3 import GPT3, GPT3Config, initialise
from atom.optim.rate import RateSettings, learning_rate
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.records.manifest import Manifest
from atom.training.storage.run_storage import list_snapshots


def model_of(run: RunFile) -> GPT3:
    assert run.model.vocabulary_size is not None
    shape = run.model.shape()
    return GPT3(GPT3Config.build(vocabulary_size=run.model.vocabulary_size, **shape))


def samples_of(dataset: Dataset, head: Head, commit: Commit) -> list[int]:
    """The positions that the round after `head` averaged over, member by member."""
    return [
        dataset.sampler.draw_position(head.cursor, head.members, part.peer_id, k)
        for part in commit.value.contributions
        for k in range(part.sequences)
    ]


def train_plainly(
    manifest: Manifest, commits: Sequence[Commit], heads: Sequence[Head], cache: Path
) -> tuple[dict[str, Tensor], list[float]]:
    """Weights by name and the loss of every round, trained on the samples of `commits`."""
    run = run_from_text(manifest.run_file)
    dataset = open_dataset(
        stdlib_corpus(Limits(run.data.max_bytes)),
        run.data.tokenizer,
        validation_fraction=run.data.validation_fraction,
        sequence_tokens=run.model.sequence_tokens,
        seed=run.run.seed,
        cache_folder=cache,
    )
    model = model_of(run)
    initialise(model, run.run.seed)
    parameters = [*model.parameters()]
    decays = [p for p in parameters if p.dim() >= 2]
    stays = [p for p in parameters if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decays, "weight_decay": run.optimizer.weight_decay},
            {"params": stays, "weight_decay": 0.0},
        ],
        lr=run.optimizer.learning_rate,
        betas=run.optimizer.betas,
        eps=run.optimizer.epsilon,
    )
    rate = RateSettings(
        run.optimizer.learning_rate,
        run.optimizer.final_learning_rate,
        run.optimizer.warmup_rounds,
        run.optimizer.decay,
        run.run.rounds,
    )
    losses = []
    for head, commit in zip(heads, commits, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(rate, commit.value.round)
        tokens, targets = dataset.batch(samples_of(dataset, head, commit))
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), run.optimizer.clip_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    return {name: value.detach() for name, value in model.named_parameters()}, losses


def final_weights(state: Path, manifest: Manifest) -> dict[str, Tensor]:
    """Master weights by name, from the snapshot of the last round."""
    run, snapshot = run_from_text(manifest.run_file), list_snapshots(state / "snapshots")[0]
    assert snapshot.round == run.run.rounds
    tokens = torch.zeros((2, run.model.sequence_tokens), dtype=torch.int64)
    layout = build_program(
        trace(model_of(run), {"tokens": tokens, "targets": tokens.clone()})
    ).layout
    master = snapshot.load()["master"]
    return {spec.name: layout.view(master, spec.name) for spec in layout.specs}


def relative_difference(weights: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """‖a - b‖ / ‖b‖ over all weights as one vector, in float64."""
    assert weights.keys() == reference.keys()
    pairs = [(weights[name].double(), reference[name].double()) for name in reference]
    difference = sum(float((a - b).square().sum()) for a, b in pairs)
    return math.sqrt(difference / sum(float(b.square().sum()) for _, b in pairs))
