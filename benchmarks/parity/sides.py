"""Sides of the comparison: Atom's rule, optimizer and codecs, and two sides in plain PyTorch.

The reference has only the model in common with Atom: it is the published algorithm in plain code.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice

import torch
from torch import Tensor

from atom.base.clock import BootClock
from atom.graph.ir import padded_elements
from atom.optim.adamw import AdamW
from atom.optim.clipping import gradient_norm
from atom.optim.gradients import GradientArena
from atom.optim.muon import Muon
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.optim.rate import RateSettings, learning_rate
from atom.optim.stepper import Stepper
from atom.swap.host_store import MASTER, HostStore, StateForm
from atom.swarm.exchange.codec import Codec
from atom.training.replica.local_steps import LocalSteps
from benchmarks.parity.model import Size, drawn, gradients, text

CLIP_NORM, DECAY, BETAS = 1.0, 0.1, (0.9, 0.95)


@dataclass(frozen=True)
class Play:
    """Settings of all sides."""

    size: Size
    peers: int
    inner_steps: int
    """Inner steps of a peer between two rounds, if all speeds are equal."""
    rounds: int
    sequences: int
    """Sequences of one inner step."""
    rate: RateSettings
    outer_rate: float
    outer_momentum: float
    seed: int
    optimizer: type[Optimizer] = AdamW
    """Inner optimizer."""

    def first_weights(self) -> Tensor:
        layout, generator = self.size.layout, torch.Generator().manual_seed(self.seed)
        arena = torch.zeros(layout.total_elements)
        for spec in layout.specs:
            value = self.size.first_value(spec.name, spec.shape, generator)
            layout.view(arena, spec.name).copy_(value)
        return arena

    def samples(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the samples of all peers at each inner step, [peers, sequences, tokens].

        All sides get the same samples.
        """
        generator = torch.Generator().manual_seed(self.seed + 77)
        while True:
            yield drawn(text()[0], (self.peers, self.sequences), generator)


def synchronous(play: Play) -> Iterator[Tensor]:
    """Yield weights after each round of optimizer steps on all peers' sequences at once."""
    weights = play.first_weights()
    optimizers, leaves = plain_optimizers(play.size, weights, play.optimizer is Muon)
    samples = play.samples()
    for round in range(1, play.rounds + 1):
        for _ in range(play.inner_steps):
            tokens, targets = (each.flatten(0, 1)[None] for each in next(samples))
            _, found = gradients(play.size, weights[None], tokens, targets)
            plain_step(optimizers, leaves, found[0], learning_rate(play.rate, round))
        yield weights


def reference(play: Play) -> Iterator[Tensor]:
    """Yield the weights of DiLoCo (arXiv 2311.08105) in plain PyTorch."""
    shared = play.first_weights().requires_grad_()
    outer = torch.optim.SGD(
        [shared], lr=play.outer_rate, momentum=play.outer_momentum, nesterov=True
    )
    peers = [shared.detach().clone() for _ in range(play.peers)]
    inner = [plain_optimizers(play.size, weights) for weights in peers]
    samples = play.samples()
    for round in range(1, play.rounds + 1):
        for _ in range(play.inner_steps):
            _, found = gradients(play.size, torch.stack(peers), *next(samples))
            for (optimizers, leaves), gradient in zip(inner, found, strict=True):
                plain_step(optimizers, leaves, gradient, learning_rate(play.rate, round))
        shared.grad = shared.detach() - torch.stack(peers).mean(0)
        outer.step()
        for weights in peers:
            weights.copy_(shared.detach())
        yield shared.detach()


def plain_optimizers(
    size: Size, weights: Tensor, muon: bool = False
) -> tuple[list[torch.optim.Optimizer], list[Tensor]]:
    """Return PyTorch's AdamW on views of one arena; matrices decay.

    Args:
        size: the model.
        weights: arena.
        muon: PyTorch's Muon for hidden matrices.
    """
    layout = size.layout
    views = {spec: layout.view(weights, spec.name) for spec in layout.specs}
    hidden = [leaf for spec, leaf in views.items() if muon and spec.hidden_matrix]
    rest = [leaf for spec, leaf in views.items() if not (muon and spec.hidden_matrix)]
    groups = [
        {"params": [leaf for leaf in rest if leaf.dim() > 1], "weight_decay": DECAY},
        {"params": [leaf for leaf in rest if leaf.dim() == 1], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=1.0, betas=BETAS, foreach=True)
    ]
    if hidden:
        optimizers.append(
            torch.optim.Muon(hidden, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
        )
    return optimizers, list(views.values())


def plain_step(
    optimizers: Sequence[torch.optim.Optimizer],
    leaves: Sequence[Tensor],
    gradient: Tensor,
    rate: float,
) -> None:
    scale, start = min(1.0, CLIP_NORM / (float(gradient.norm()) + 1e-6)), 0
    for leaf in leaves:
        leaf.grad = gradient[start : start + leaf.numel()].view_as(leaf) * scale
        start += padded_elements(leaf.numel())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


class PlayedPeer:
    """Store, optimizer and update rule of a peer, without engine and network."""

    def __init__(self, play: Play, codec: Codec) -> None:
        layout = play.size.layout
        make: Callable[..., Optimizer] = play.optimizer
        optimizer = make(betas=BETAS, weight_decay=DECAY)
        state = optimizer_state(optimizer, layout, StateForm.EXACT)
        self.store = HostStore.allocate(layout, optimizer_state=state)
        self.gradients = GradientArena(self.store.gradients)
        self.stepper = Stepper(self.store, optimizer, BootClock())
        self.rule = LocalSteps(
            self.store, self.gradients, self.stepper, play.rate, CLIP_NORM,
            inner_sequences=play.sequences, outer_rate=play.outer_rate,
            outer_momentum=play.outer_momentum, keeps_lost=codec.given_back > 0,
        )  # fmt: skip
        self.store.master.copy_(play.first_weights())
        self.rule.initialised()

    def train(self, gradient: Tensor, sequences: int) -> None:
        """Count a pass of so many sequences with this mean gradient."""
        with self.gradients.accumulating(lambda: True):
            torch.mul(gradient, sequences, out=self.gradients.flat)
        self.gradients.count(sequences, 0.0)
        self.rule.pass_ended()
        self.stepper.wait()

    def commit(self, mean: Tensor, round: int, ours: int) -> None:
        """Apply a round's mean, which has `ours` sequences of this peer."""
        self.rule.commit(mean, gradient_norm(mean), round, ours, True)
        self.stepper.wait()


def ours(
    play: Play, codec: Codec, speeds: Sequence[int] = (1,), away_every: int = 0, late: int = 0
) -> Iterator[Tensor]:
    """Yield the shared weights of local steps after each round.

    Args:
        play: settings.
        codec: codec of the exchange by parts with owners.
        speeds: of the peers, in turn.
        away_every: rounds after which the first peer misses one and returns without its state.
        late: inner steps of the next round that are taken before a round is decided.
    """
    peers = [PlayedPeer(play, codec) for _ in range(play.peers)]
    samples, speeds = play.samples(), list(islice(cycle(speeds), play.peers))
    decide: Callable[[], Tensor] | None = None
    for round in range(1, play.rounds + 1):
        away = bool(away_every) and round % away_every == 0
        here = peers[1:] if away else peers
        steps = _steps(play, speeds[1:] if away else speeds)
        for tick in range(max(steps)):
            if tick == late and decide is not None:
                yield decide()
            able = [n for n, most in enumerate(steps) if tick < most]
            tokens, targets = (each[: len(able)] for each in next(samples))
            arenas = torch.stack([here[n].store.master for n in able])
            _, found = gradients(play.size, arenas, tokens, targets)
            for n, gradient in zip(able, found, strict=True):
                here[n].train(gradient, play.sequences)
        mean, counts = exchanged(here, codec), [peer.gradients.sequences for peer in here]
        if late:
            decide = partial(decided, here, counts, mean, round)
            continue
        decided(here, counts, mean, round)
        if away:
            for name, arena in peers[0].rule.shared().items():
                arena.copy_(peers[1].rule.shared()[name])
            peers[0].rule.adopted(round)
        yield peers[0].rule.shared()[MASTER]
    if decide is not None:
        yield decide()


def decided(peers: Sequence[PlayedPeer], counts: Sequence[int], mean: Tensor, round: int) -> Tensor:
    """Commit a round at all peers; return the new shared weights."""
    for peer, ours in zip(peers, counts, strict=True):
        peer.commit(mean, round, ours)
    return peers[0].rule.shared()[MASTER]


def _steps(play: Play, speeds: Sequence[int]) -> list[int]:
    """Return each peer's inner steps: proportional to its speed, with the same sum."""
    total = play.peers * play.inner_steps
    steps = [total * speed // sum(speeds) for speed in speeds]
    return [count + (n < total - sum(steps)) for n, count in enumerate(steps)]


def exchanged(peers: Sequence[PlayedPeer], codec: Codec) -> Tensor:
    """Return the mean of the peers' contributions, by parts with owners.

    Members encode their parts; the owner of a part adds them to its own and encodes the mean; each
    keeps its quantisation error.
    """
    scale = 1.0 / sum(peer.gradients.sequences for peer in peers)
    offers, elements = [peer.rule.contribution() for peer in peers], peers[0].store.master.numel()
    scratch, mean = torch.empty(4 * elements + 64, dtype=torch.uint8), torch.empty(elements)
    size = -(-elements // len(peers) // 16) * 16
    for place, owner in enumerate(offers):
        start, stop = place * size, min((place + 1) * size, elements)
        total, lost = owner.part(start, stop).clone(), torch.empty(stop - start)
        for offer in offers[place + 1 :] + offers[:place]:
            wire = codec.encode(offer.part(start, stop), scratch, lost)
            codec.add(wire, total, 1.0, total)
            if offer.keeps_lost:
                offer.record_lost(start, lost * codec.given_back)
        total *= scale
        codec.decode(codec.encode(total, scratch, lost), mean[start:stop])
        if owner.keeps_lost:
            lost *= codec.given_back / scale
            owner.record_lost(start, lost, 1 / (scale * len(peers)))
    return mean
