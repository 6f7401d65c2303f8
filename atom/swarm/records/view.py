"""View of a swarm computed from leases and manifest alone, for `atom status` and `atom watch`."""

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
    MOST_PUNCHED,
    HowReached,
    Lease,
    PeerState,
    Reached,
    SampleText,
    Validation,
    of_our_version,
    versions_text,
)
from atom.swarm.records.manifest import DataAmount, Manifest


def usual_round_s(leases: Iterable[Lease]) -> float | None:
    """Return the usual seconds of a round: the median of the means that peers at one head claim.

    Peers smooth the durations, so a look at one moment is as steady as a look over minutes.
    Return None if no peer has seen a whole round.
    """
    uses = [lease.last_round for lease in leases if lease.last_round]
    return statistics.median_low(e.usual_seconds or e.seconds for e in uses) if uses else None


def remaining(rounds: int | None, round_number: int, round_s: float | None) -> str:
    """Return the estimated time until the run ends, at the present speed, as "2.3 h to go".

    All screens use this text.

    Args:
        rounds: Number of rounds of the run; None if it is unlimited or unknown.
        round_number: Number of the last committed round.
        round_s: Usual seconds of a round (`usual_round_s`); None if unknown.

    Returns:
        Text for display; empty if the time is unknown or the run is over.
    """
    left = 0 if rounds is None else rounds - round_number
    return "" if round_s is None or left <= 0 else f"{format_seconds(left * round_s)} to go"


def validation_json(validation: Validation | None, data: Data | None) -> dict[str, Any] | None:
    """Return a validation in JSON types; None if there is none.

    Args:
        validation: Validation that a peer published.
        data: Data section of the run file; None if the run file cannot be read.

    Returns:
        `round`, `loss`, the loss as perplexity or bits per byte if the data is text, and in `texts`
        the same figures for each text if there are several.
    """
    if validation is None:
        return None
    names = [] if data is None else data.held_back
    by_text = dict(zip(names, validation.by_text, strict=False))
    texts = {name: _figures(loss, data) for name, loss in by_text.items()}
    return {"round": validation.round, **_figures(validation.loss, data), "texts": texts}


def _figures(loss: float, data: Data | None) -> dict[str, float]:
    """Convert a loss in nats per token; a byte tokenizer has one token per byte."""
    if data is None or data.source == "module":
        return {"loss": loss}
    if data.tokenizer == "bytes":
        return {"loss": loss, "bits_per_byte": round(loss / math.log(2), 6)}
    return {"loss": loss, "perplexity": round(math.exp(min(loss, 700.0)), 4)}


def validation_text(figures: Mapping[str, Any] | None) -> str:
    """Return "validation 4.6470 (perplexity 104.3) after round 160"; empty without a validation."""
    if figures is None:
        return ""
    return f"validation {_loss_text(figures)} after round {figures['round']:,}"


def validation_by_text(figures: Mapping[str, Any] | None) -> str:
    """Return "books 4.1340 (perplexity 62.43), code …"; empty unless there are several texts."""
    texts = {} if figures is None else figures["texts"]
    return ", ".join(f"{name} {_loss_text(each)}" for name, each in texts.items())


def loss_meaning(figures: Mapping[str, float]) -> str:
    """Return "perplexity 104.3" or "6.704 bits per byte"; empty if the loss is not one of text."""
    if "perplexity" in figures:
        return f"perplexity {figures['perplexity']:,.4g}"
    return f"{figures['bits_per_byte']:.3f} bits per byte" if "bits_per_byte" in figures else ""


def _loss_text(figures: Mapping[str, float]) -> str:
    return f"{figures['loss']:.4f} ({loss_meaning(figures)})".removesuffix(" ()")


def batch_text(counted: int, batch: int) -> str:
    """Return the progress of the global batch, such as "12 of 64", or "64 of 64, due"."""
    return f"{counted:,} of {batch:,}" + (", due" if counted >= batch else "")


def void_text(in_a_row: int, cause: str) -> str:
    """Return "void passes: 12, loss-not-finite"; empty for fewer than two passes in a row.

    With float16 a single void pass is normal.
    """
    if in_a_row < 2:
        return ""
    return f"void passes: {in_a_row:,}" + (f", {cause}" if cause else "")


def loss_unit(data_amount: tuple[int, int, int] | None) -> str:
    """Return the unit of a run's loss: "nats per token", or empty if it is not known to be text.

    Args:
        data_amount: Tokens, samples and held-back amount, as in the manifest; None if unknown.
    """
    return "nats per token" if data_amount and data_amount[0] else ""


def trained_on(data_amount: tuple[int, int, int] | None) -> str:
    """Return the unit in which a run's speed is counted: "samples", or "tokens" (the default).

    Args:
        data_amount: Tokens, samples and held-back amount, as in the manifest; None if unknown.
    """
    return "samples" if data_amount and not data_amount[0] else "tokens"


def owners_among(peers: Iterable[Lease]) -> int:
    """Return the number of present peers that may own parts of an exchange, by their leases.

    These are the peers that others can dial. If each other peer is steady, all of them may, up to
    `MOST_PUNCHED`.
    """
    present = [peer for peer in peers if peer.state is not PeerState.LEFT]
    hidden = [peer for peer in present if peer.reached is Reached.NO]
    all_steady = all(peer.reach is HowReached.PUNCHED for peer in hidden)
    all_own = all_steady and len(present) <= MOST_PUNCHED
    return len(present) if all_own else len(present) - len(hidden)


def dialable_text(peers: Iterable[Lease]) -> str:
    """Return the load of the peers that can be dialled, and the value of one more.

    Of N peers k own the parts of an exchange, and the line of each carries 1 + (N - 2) / k averages
    in each direction.

    Args:
        peers: Leases of the peers at the head.

    Returns:
        Text such as "1 of 8 peers is dialable: its line carries 7 averages; one more makes it 4";
        empty if all own parts, or there are fewer than three.
    """
    present = [peer for peer in peers if peer.state is not PeerState.LEFT]
    members, able = len(present), owners_among(present)
    if members < 3 or able in (0, members):
        return ""
    load, less = (f"{1 + (members - 2) / owners:.3g}" for owners in (able, able + 1))
    each = "is dialable: its line carries" if able == 1 else "are dialable: each line carries"
    return f"{able} of {members} peers {each} {load} averages; one more makes it {less}"


_COLUMNS = (
    "peer", "state", "reach", "round", "sequences", "seq/s", "tokens/s", "utilisation", "sent",
    "received", "digest", "lease age",
)  # fmt: skip


@dataclass(frozen=True)
class SwarmView:
    """State of a swarm at one time.

    Only peers at the preferred head count towards its figures; peers at other heads are listed.
    """

    run: str
    round: int
    global_batch: int | None
    accumulated: int
    """Sequences toward the global batch, for the round that follows `head`."""
    loss: float | None
    """Mean loss of the last committed round, in `loss_unit`."""
    head: str
    tokens_per_s: float
    """Speed of the swarm, in the unit that `trained_on` names. Peers at the head and peers one
    round behind it count: a commit does not reach all peers at once."""
    peers: tuple[Lease, ...]
    unix_time: float
    """Unix time at which the leases were read."""
    owner: str = ""
    """Peer id of the run's founder."""
    data_amount: tuple[int, int, int] | None = None
    """Tokens, samples and held-back amount, as in the manifest; None if unknown."""
    validation: dict[str, Any] | None = None
    """Newest validation that a peer at the head published, as `validation_json` returns it."""
    sample: SampleText | None = None
    """Newest sample text that a peer at the head published."""
    round_s: float | None = None
    """Usual seconds of a round: see `usual_round_s`."""

    other_versions: str = ""
    """Text about peers that run another protocol version; `peers` does not contain them."""
    me: str = ""
    """Peer id of the observer; empty if it takes no part in the run."""

    def name(self, peer_id: str) -> str:
        """Return the label of a peer in a table: its chosen name and its short id.

        The name proves nothing.
        """
        named = [lease.name for lease in self.peers if lease.peer_id == peer_id and lease.name]
        you = ["(you)"] if peer_id == self.me else []
        return " ".join([*named, short_id(peer_id), *you])

    @property
    def columns(self) -> list[str]:
        """Titles of the table of peers, without "tokens/s" if the samples are not text."""
        has_tokens = trained_on(self.data_amount) == "tokens"
        return [title for title in _COLUMNS if title != "tokens/s" or has_tokens]

    def row(self, peer: Lease) -> dict[str, str]:
        """Return the cells of a peer in the table of peers, by column title."""
        use = peer.last_round
        cells = (
            self.name(peer.peer_id),
            peer.state,
            peer.reach or "-",
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
        """Return the titles of the columns that show a problem of this peer."""
        wrong = {"round": peer.round != self.round}
        wrong["lease age"] = self.age_s(peer) > LEASE_SECONDS / 2
        gone = peer.state == PeerState.LEFT
        return {title for title, amiss in wrong.items() if amiss and not gone}

    def outlook(self, rounds: int | None) -> list[str]:
        """Return texts for display: remaining time, newest validation, and peers of other versions.

        Unknown items are left out.

        Args:
            rounds: Number of rounds of the run; None: endless, or unknown.
        """
        to_go = remaining(rounds, self.round, self.round_s)
        return list(filter(None, (to_go, validation_text(self.validation), self.other_versions)))

    def age_s(self, lease: Lease) -> float:
        """Return the age of a lease in seconds, for display only.

        The age is our wall clock minus the publisher's.
        """
        return round(max(0.0, self.unix_time - lease.issued_at), 1)

    def to_json(self) -> dict[str, Any]:
        """Return the view in JSON types, with the keys of `atom status --json`."""
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
            "reachable": lease.reached.value or "unknown",
            "reach": lease.reach.value or "unknown",
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
    """Compute the view of a swarm from its manifest and its leases.

    Args:
        manifest: Verified manifest of the run.
        leases: Verified leases, of any protocol version.
        global_batch: Sequences per round according to the run file; None if it cannot be read.
        unix_time: Time at which the leases were read.
        me: Peer id of the observer; empty if it takes no part in the run.
        data: Data section of the run file; None if it cannot be read.
    """
    found = {lease.peer_id: lease for lease in leases}
    peers = tuple(lease for _, lease in sorted(of_our_version(found).items()))
    head = preferred_head(peers)
    on_head = [lease for lease in peers if lease.head == head]
    newest = max((lease.round for lease in on_head), default=0)
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
        validation=validation_json(max(validations, default=None), data),
        sample=max(samples, default=None),
        me=me,
        round_s=usual_round_s(on_head),
        other_versions=versions_text(found.values()),
    )


def preferred_head(leases: Iterable[Lease]) -> bytes:
    """Return the best head that the leases claim, by fork choice; empty if none claims a head.

    Claims are good enough for display. Peers themselves follow certificates, not claims.
    """
    claims = [lease for lease in leases if lease.head]
    ranked = ((rank(each.head, each.round, each.branches), each.head) for each in claims)
    return max(ranked, default=(None, b""))[1]
