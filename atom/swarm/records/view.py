"""The swarm as an onlooker sees it, from leases and manifest alone: `atom status`, `watch`."""

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atom.base.units import format_bytes, format_seconds
from atom.config.model_and_data import Data
from atom.swarm.chain.commit import rank
from atom.swarm.identity import short_id
from atom.swarm.records.lease import (
    LEASE_SECONDS,
    Lease,
    PeerState,
    SampleText,
    Validation,
    of_our_version,
    versions_text,
)
from atom.swarm.records.manifest import DataAmount, Manifest


def remaining(rounds: int | None, round_number: int, round_s: float | None) -> str:
    """How long a run goes on, if its rounds take as long as now: "2.3 h to go". Empty: not known,
    or it is over."""
    left = 0 if rounds is None else rounds - round_number
    return "" if round_s is None or left <= 0 else f"{format_seconds(left * round_s)} to go"


def validation_told(validation: Validation | None, data: Data | None) -> dict[str, Any] | None:
    """JSON-serialisable: `round`, `loss`, what that means for a text, and as `texts` the
    same of each where there are several. `data`: of the run file; None: nobody could read it."""
    if validation is None:
        return None
    names = [] if data is None else data.held_back
    by_text = dict(zip(names, validation.by_text, strict=False))
    texts = {name: _figures(loss, data) for name, loss in by_text.items()}
    return {"round": validation.round, **_figures(validation.loss, data), "texts": texts}


def _figures(loss: float, data: Data | None) -> dict[str, float]:
    """The loss is in nats per token. Of bytes a token is a byte."""
    if data is None or data.source == "module":
        return {"loss": loss}
    if data.tokenizer == "bytes":
        return {"loss": loss, "bits_per_byte": round(loss / math.log(2), 6)}
    return {"loss": loss, "perplexity": round(math.exp(min(loss, 700.0)), 4)}


def validation_text(told: Mapping[str, Any] | None) -> str:
    """ "validation 4.6470 (perplexity 104.3) after round 160"; empty: there is none."""
    if told is None:
        return ""
    return f"validation {_loss_text(told)} after round {told['round']:,}"


def validation_by_text(told: Mapping[str, Any] | None) -> str:
    """ "books 4.1340 (perplexity 62.43), code …"; empty where there are not several texts."""
    texts = {} if told is None else told["texts"]
    return ", ".join(f"{name} {_loss_text(each)}" for name, each in texts.items())


def loss_meaning(figures: Mapping[str, float]) -> str:
    """Of a loss of text: "perplexity 104.3", "6.704 bits per byte". Empty: of none."""
    if "perplexity" in figures:
        return f"perplexity {figures['perplexity']:,.4g}"
    return f"{figures['bits_per_byte']:.3f} bits per byte" if "bits_per_byte" in figures else ""


def _loss_text(figures: Mapping[str, float]) -> str:
    return f"{figures['loss']:.4f} ({loss_meaning(figures)})".removesuffix(" ()")


def batch_text(counted: int, batch: int) -> str:
    """Of the sequences that a round asks for."""
    return f"{counted:,} of {batch:,}" + (", due" if counted >= batch else "")


def void_text(in_a_row: int, cause: str) -> str:
    """ "void passes: 12, loss-not-finite"; empty for one alone: float16 has those now and then."""
    if in_a_row < 2:
        return ""
    return f"void passes: {in_a_row:,}" + (f", {cause}" if cause else "")


def loss_unit(data_amount: tuple[int, int, int] | None) -> str:
    """What a run's loss counts, by the amount in its manifest. Empty where there is no text, or
    nobody said so: then the loss is whatever its module returns."""
    return "nats per token" if data_amount and data_amount[0] else ""


def trained_on(data_amount: tuple[int, int, int] | None) -> str:
    """What a run's speed counts, by the same amount. Where nobody said it: as almost everywhere."""
    return "samples" if data_amount and not data_amount[0] else "tokens"


_COLUMNS = (
    "peer", "state", "round", "sequences", "seq/s", "tokens/s", "utilisation", "sent",
    "received", "digest", "lease age",
)  # fmt: skip


@dataclass(frozen=True)
class SwarmView:
    """Counts are those of the preferred head; peers on another head are listed, not counted."""

    run: str
    round: int
    global_batch: int | None
    accumulated: int
    """Sequences toward the global batch, for the round that follows `head`."""
    loss: float | None
    """Mean loss of the last committed round, in `loss_unit`."""
    head: str
    tokens_per_s: float
    """Of what it is `trained_on`. Of who is at the head or a round behind it: a commit reaches
    peers one after the other."""
    peers: tuple[Lease, ...]
    unix_time: float
    """Of the look."""
    owner: str = ""
    """Peer id of who founded the run."""
    data_amount: tuple[int, int, int] | None = None
    """As in the manifest."""
    validation: dict[str, Any] | None = None
    """The newest that a peer at the head says, as `validation_told`."""
    sample: SampleText | None = None
    """As `validation`."""
    round_s: float | None = None
    """Of the last round, as the middle one of the peers at the head saw it."""

    other_versions: str = ""
    """Peers that run another version of the protocol, in words; they are not among `peers`."""
    me: str = ""
    """Peer id of the onlooker; empty if it takes no part in the run."""

    def name(self, peer_id: str) -> str:
        """How a table calls a peer. What it calls itself proves nothing: the id stands beside."""
        named = [lease.name for lease in self.peers if lease.peer_id == peer_id and lease.name]
        you = ["(you)"] if peer_id == self.me else []
        return " ".join([*named, short_id(peer_id), *you])

    @property
    def columns(self) -> list[str]:
        """Of a table of peers. A sample that is no text has no tokens: a sequence per second is
        one."""
        has_tokens = trained_on(self.data_amount) == "tokens"
        return [title for title in _COLUMNS if title != "tokens/s" or has_tokens]

    def row(self, peer: Lease) -> dict[str, str]:
        """What a table says of a peer, by column."""
        use = peer.last_round
        cells = (
            self.name(peer.peer_id),
            peer.state,
            f"{peer.round:,}",
            f"{peer.sequences:,}",
            f"{peer.sequences_per_s:,.1f}",
            f"{peer.tokens_per_s:,.0f}",
            f"{use.utilisation:.0%}" if use else "-",
            format_bytes(use.sent_bytes) if use else "-",
            format_bytes(use.received_bytes) if use else "-",
            peer.state_digest.hex()[:8] or "-",
            f"{self.age_s(peer):.1f} s",
        )
        return dict(zip(_COLUMNS, cells, strict=True))

    def marked(self, peer: Lease) -> set[str]:
        """The columns of its row that say that something is amiss."""
        wrong = {"round": peer.round != self.round}
        wrong["lease age"] = self.age_s(peer) > LEASE_SECONDS / 2
        gone = peer.state == PeerState.LEFT
        return {title for title, amiss in wrong.items() if amiss and not gone}

    def outlook(self, rounds: int | None) -> list[str]:
        """Return how long the run goes on, the newest validation, and the peers of other versions,
        as far as they are known."""
        to_go = remaining(rounds, self.round, self.round_s)
        return list(filter(None, (to_go, validation_text(self.validation), self.other_versions)))

    def age_s(self, lease: Lease) -> float:
        """Since the publisher issued it, by two wall clocks: for display."""
        return round(max(0.0, self.unix_time - lease.issued_at), 1)

    def to_json(self) -> dict[str, Any]:
        """JSON-serialisable; the keys of `atom status --json`."""
        return {
            "run": self.run,
            "owner": self.owner,
            "round": self.round,
            "global_batch": self.global_batch,
            "data": self.data_amount and DataAmount(*self.data_amount)._asdict(),
            "accumulated": self.accumulated,
            "loss": self.loss,
            "head": self.head,
            "tokens_per_s": round(self.tokens_per_s, 3),
            "validation": self.validation,
            "round_s": self.round_s,
            "sample": self.sample and self.sample._asdict(),
            "peers": [self._peer(lease) for lease in self.peers],
            "other_versions": self.other_versions,
        }

    def _peer(self, lease: Lease) -> dict[str, Any]:
        return {
            "peer_id": lease.peer_id,
            "name": lease.name,
            "state": lease.state,
            "round": lease.round,
            "sequences": lease.sequences,
            "rate": round(lease.sequences_per_s, 3),
            "tokens_per_s": lease.tokens_per_s,
            "digest": lease.state_digest.hex(),
            "lease_age_s": self.age_s(lease),
            "void_passes": lease.void_passes,
            "void_cause": lease.void_cause,
            "last_round": lease.last_round and lease.last_round._asdict(),
        }


def view_swarm(
    manifest: Manifest,
    leases: Iterable[Lease],
    global_batch: int | None,
    unix_time: float,
    me: str = "",
    data: Data | None = None,
) -> SwarmView:
    """Assembles the view. `global_batch` (sequences) and `data` are what the manifest's run file
    says; `me`: as in the view."""
    found = {lease.peer_id: lease for lease in leases}
    peers = tuple(lease for _, lease in sorted(of_our_version(found).items()))
    head = preferred_head(peers)
    on_head = [lease for lease in peers if lease.head == head]
    newest = max((lease.round for lease in on_head), default=0)
    seconds = [lease.last_round.seconds for lease in on_head if lease.last_round]
    validations = [v for lease in on_head if (v := lease.validation) and v.round <= newest]
    samples = [each for lease in on_head if (each := lease.sample) and each.round <= newest]
    return SwarmView(
        run=manifest.run,
        round=newest,
        global_batch=global_batch,
        accumulated=sum(lease.sequences for lease in on_head if lease.state != PeerState.LEFT),
        loss=next((lease.loss for lease in on_head if lease.loss is not None), None),
        head=head.hex(),
        tokens_per_s=sum(
            lease.tokens_per_s
            for lease in peers
            if lease.state != PeerState.LEFT and (lease.head == head or lease.round == newest - 1)
        ),
        peers=peers,
        unix_time=unix_time,
        owner=manifest.owner,
        data_amount=manifest.data_amount,
        validation=validation_told(max(validations, default=None), data),
        sample=max(samples, default=None),
        me=me,
        round_s=statistics.median_low(seconds) if seconds else None,
        other_versions=versions_text(found.values()),
    )


def preferred_head(leases: Iterable[Lease]) -> bytes:
    """Fork choice on claims. Empty if nobody has a head.

    Good enough to look at; peers themselves follow certificates, not claims.
    """
    claims = [lease for lease in leases if lease.head]
    ranked = ((rank(each.head, each.round, each.branches), each.head) for each in claims)
    return max(ranked, default=(None, b""))[1]
