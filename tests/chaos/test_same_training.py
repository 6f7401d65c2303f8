"""Three daemons train what a plain PyTorch loop trains, on the same samples. Each has cut the model
for another device; they enter through a stock `hivemind-dht` node."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from dht_stock import stock_node
from swarm_history import check_peers, read_chain, read_manifest
from swarm_of_processes import START_S, ending, gather, swarm_in
from torch import Tensor, nn

from atom.config.load import run_from_text
from atom.config.run_file import RunFile
from atom.graph.program import build_program
from atom.graph.trace import trace
from atom.models.data.corpus import stdlib_corpus
from atom.models.data.samples import Cut, Samples, Text, token_samples
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import load_tokenizer
from atom.models.gpt3 import GPT3, GPT3Config, initialise
from atom.optim.rate import RateSettings, learning_rate
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.records.manifest import Manifest
from atom.swarm.state.arenas import CHUNK_BYTES
from atom.training.storage.run_storage import list_snapshots
from tests.training.plain_training import adamw

pytestmark = pytest.mark.timeout(4 * START_S)

ROUNDS = 20
TOLERANCE = 1e-5
NAMES = ("red", "green", "blue")


def model_of(run: RunFile) -> GPT3:
    assert run.model.vocabulary_size is not None
    shape = run.model.shape()
    return GPT3(GPT3Config.build(vocabulary_size=run.model.vocabulary_size, **shape))


def samples_of(dataset: Samples, head: Head, commit: Commit) -> list[int]:
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
    coder = load_tokenizer(run.data.tokenizer)
    text = Text(cached_tokens(stdlib_corpus(run.data.max_bytes), coder, cache))
    cut = Cut(run.data.validation_fraction, run.model.sequence_tokens, CHUNK_BYTES)
    dataset = token_samples([text], coder, cut, run.run.seed)
    model = model_of(run)
    initialise(model, run.run.seed)
    settings = run.optimizer
    optimizer = adamw(
        model,
        settings.weight_decay,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
    )
    rate = RateSettings(
        settings.learning_rate,
        settings.final_learning_rate,
        settings.warmup_rounds,
        settings.decay,
        run.run.rounds,
    )
    losses = []
    for head, commit in zip(heads, commits, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(rate, commit.value.round)
        tokens, targets = dataset.batch(samples_of(dataset, head, commit)).values()
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
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


def test_three_daemons_train_what_a_plain_loop_trains(tmp_path: Path) -> None:
    with stock_node() as entrance, swarm_in(tmp_path, ending("same", ROUNDS), NAMES) as swarm:
        swarm.start_options = ("--initial-peers", entrance)
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        assert [peer.wait() for peer in swarm.peers] == [0] * len(NAMES), swarm.story()
        assert swarm.left_over() == []
        commits, heads = read_chain(swarm.founder.state, "same")
        assert len(commits) == ROUNDS
        together = [c for c in commits if len(c.value.contributions) == len(NAMES)]
        assert len(together) >= ROUNDS // 2, swarm.story()
        manifest = read_manifest(swarm.founder.state, "same")
        reference, losses = train_plainly(manifest, commits, heads, swarm.founder.state / "tokens")
        assert losses[-1] < losses[0] - 0.1
        assert [c.value.loss for c in commits] == pytest.approx(losses, rel=1e-4)
        for peer in swarm.peers:
            difference = relative_difference(final_weights(peer.state, manifest), reference)
            assert difference <= TOLERANCE, f"{peer.name}: {difference:.2e}"
        told = [{event["round"] for event in peer.rounds} for peer in swarm.peers]
        assert all(ROUNDS in rounds for rounds in told)
        assert len(set.intersection(*told)) >= ROUNDS // 2
        assert check_peers(swarm.peers, "same") == 0, "replicas agree in every round"
