"""Three daemons train what a plain PyTorch loop trains, on the same samples. Each has cut the model
for another device, and one has two devices; they enter through a stock `hivemind-dht` node."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from dht_stock import stock_node
from swarm_history import check_peers, read_chain
from swarm_of_processes import START_S, Peer, ending, gather, swarm_in
from torch import Tensor, nn

from atom.daemon.model.kept_run import KeptRun
from atom.models.data.corpus import stdlib_corpus
from atom.models.data.samples import Cut, Samples, Text, token_samples
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import load_tokenizer
from atom.models.source import materialised
from atom.optim.rate import RateSettings, learning_rate
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.state.arenas import CHUNK_BYTES
from tests.training.plain_training import adamw

pytestmark = pytest.mark.timeout(4 * START_S)

ROUNDS = 20
TOLERANCE = 1e-5
NAMES = ("red", "green", "blue")


def samples_of(dataset: Samples, head: Head, commit: Commit) -> list[int]:
    """The positions that the round after `head` averaged over, member by member."""
    return [
        dataset.sampler.draw_position(head.cursor, head.members, part.peer_id, k)
        for part in commit.value.contributions
        for k in range(part.sequences)
    ]


def train_plainly(kept: KeptRun, heads: Sequence[Head]) -> tuple[dict[str, Tensor], list[float]]:
    """Weights by name and the loss of every round, trained on the samples of its commits."""
    run, settings = kept.run, kept.run.optimizer
    coder = load_tokenizer(run.data.tokenizer)
    corpus = stdlib_corpus(run.data.max_bytes)
    text = Text(cached_tokens(corpus, coder, kept.state.root / "tokens"))
    cut = Cut(run.data.validation_fraction, run.model.sequence_tokens, CHUNK_BYTES)
    dataset = token_samples([text], coder, cut, run.run.seed)
    model = materialised(kept.source(None), torch.float32, run.run.seed)
    rates = settings.learning_rate, settings.final_learning_rate
    rate = RateSettings(*rates, settings.warmup_rounds, settings.decay, run.run.rounds)
    betas, epsilon = settings.betas, settings.epsilon
    optimizer = adamw(model, settings.weight_decay, betas=betas, eps=epsilon)
    losses = []
    for head, commit in zip(heads, kept.journal.commits, strict=False):
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


def final_weights(peer: Peer) -> dict[str, Tensor]:
    """Master weights by name, from the snapshot of the last round."""
    _, _, weights = KeptRun.read(peer.state).opened(None, str(ROUNDS))
    return {spec.name: weights.value(spec.name, torch.float32) for spec in weights.layout.specs}


def relative_difference(weights: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """‖a - b‖ / ‖b‖ over all weights as one vector, in float64."""
    assert weights.keys() == reference.keys()
    pairs = [(weights[name].double(), reference[name].double()) for name in reference]
    difference = sum(float((a - b).square().sum()) for a, b in pairs)
    return math.sqrt(difference / sum(float(b.square().sum()) for _, b in pairs))


def test_three_daemons_train_what_a_plain_loop_trains(tmp_path: Path) -> None:
    with stock_node() as entrance, swarm_in(tmp_path, ending("same", ROUNDS), NAMES) as swarm:
        swarm.start_options = ("--initial-peers", entrance)
        swarm.peers[1].use('["cpu", "cpu"]')
        swarm.found(standing=True)
        gather(swarm)
        assert swarm.peers[1].info()["devices"] == {"cpu (1)": None, "cpu (2)": None}
        swarm.resume()
        assert [peer.wait() for peer in swarm.peers] == [0] * len(NAMES), swarm.story()
        assert swarm.left_over() == []
        commits, heads = read_chain(swarm.founder.state, "same")
        assert len(commits) == ROUNDS
        together = [c for c in commits if len(c.value.contributions) == len(NAMES)]
        assert len(together) >= ROUNDS // 2, swarm.story()
        reference, losses = train_plainly(KeptRun.read(swarm.founder.state), heads)
        assert losses[-1] < losses[0] - 0.1
        assert [c.value.loss for c in commits] == pytest.approx(losses, rel=1e-4)
        for peer in swarm.peers:
            difference = relative_difference(final_weights(peer), reference)
            assert difference <= TOLERANCE, f"{peer.name}: {difference:.2e}"
        told = [{event["round"] for event in peer.rounds} for peer in swarm.peers]
        assert all(ROUNDS in rounds for rounds in told)
        assert len(set.intersection(*told)) >= ROUNDS // 2
        assert check_peers(swarm.peers, "same") == 0, "replicas agree in every round"
