"""Tells a volunteer that the peer would slow the run down, before it takes part and while it does.
It refuses nothing, and says nothing where it cannot know."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from atom.config.peer_file import Network
from atom.config.run_file import LOCAL_STEPS, RunFile
from atom.swarm.exchange.codec import codec_named
from atom.swarm.records.lease import Lease, PeerState

WORTH_SAYING = 1.01
"""Times as long; what is below is noise."""
_ABSENT = {PeerState.LEFT, PeerState.LEAVING, PeerState.PAUSED}


@dataclass(frozen=True)
class RoundNow:
    """As the peers that are there measured it."""

    peers: int
    seconds: float
    passes_s: float
    """Of them in passes."""
    sequences: int
    overlapped: bool
    """Whether passes go on while averages travel."""


def round_now(run: RunFile, leases: Iterable[Lease], me: str) -> RoundNow | None:
    """As those say who are there; None: nobody has seen a whole round."""
    there = [each for each in leases if each.state not in _ABSENT and each.peer_id != me]
    uses = [each.last_round for each in there if each.last_round is not None]
    if not uses:
        return None
    return RoundNow(
        peers=len(there),
        seconds=statistics.median(use.seconds for use in uses),
        passes_s=statistics.median(use.utilisation * use.seconds for use in uses),
        sequences=run.batch.global_sequences,
        overlapped=run.update.rule == LOCAL_STEPS,
    )


def slow_joining(
    run: RunFile, network: Network, elements: int, micro_batch_s: float | None, now: RoundNow | None
) -> str:
    """Words; empty: nothing is known, or nothing is slower.

    Args:
        elements: of an average.
        micro_batch_s: seconds that this box takes for one; None: it was not measured.
        now: a round without this peer.
    """
    cap = least_cap(network)
    if cap is None or now is None:
        return ""
    line_s = codec_named(run.swarm.codec).wire_bytes(elements) / (cap / 8)
    rate = run.batch.micro_batch_sequences / micro_batch_s if micro_batch_s else math.inf
    with_us = seconds_with(now, line_s, rate)
    if with_us < WORTH_SAYING * now.seconds:
        return ""
    helps = ["more sequences a round", "a coarser codec"]
    helps += [] if now.overlapped else ["local steps"]
    return (
        f"this peer would slow the run down: a round takes {now.seconds:,.1f} s now, and about "
        f"{with_us:,.1f} s with it, as its line of {cap / 1e6:g} Mbit/s carries one average in "
        f"{line_s:,.1f} s. What would help: a faster line ([network] upload, download), or, in "
        f"another run file, {', '.join(helps)}"
    )


def line_cost(
    network: Network, average_bytes: float, now: RoundNow, given: int, is_new: bool
) -> str:
    """What the caps of a peer's line cost the swarm that it is in; empty: nothing.

    Args:
        now: the last round, with this peer in it.
        given: of its sequences by this peer; 0: no exchange waited for its line.
        is_new: the caps came after that round: then also how much longer the next ones are.
    """
    cap, others = least_cap(network), now.sequences - given
    if cap is None or others <= 0 or not (given or is_new):
        return ""
    line_s, exchange_s = average_bytes / (cap / 8), max(now.seconds - now.passes_s, 0.0)
    both = max if now.overlapped else float.__add__
    with_s = both(now.passes_s, max(exchange_s, line_s))
    without_s = both(now.passes_s * now.sequences / others, max(exchange_s - line_s, 0.0))
    said = []
    if is_new and with_s > WORTH_SAYING * now.seconds:
        said.append(f"a round takes {now.seconds:,.1f} s now, and about {with_s:,.1f} s with it")
    if with_s > WORTH_SAYING * without_s:
        said.append(
            f"the line costs the swarm more than this peer gives: of a round's {with_s:,.1f} s it "
            f"takes {line_s:,.1f}; without this peer a round takes about {without_s:,.1f} s"
        )
    return "; ".join(said)


def least_cap(network: Network) -> float | None:
    """Bits per second. None: there is no cap."""
    caps = (network.upload_bits_per_s, network.download_bits_per_s)
    return min((cap for cap in caps if cap is not None), default=None)


def seconds_with(now: RoundNow, line_s: float, sequences_per_s: float = math.inf) -> float:
    """Of a round with a newcomer in it; hardly more than this, and less only if the others'
    lines are not alike. Its line takes `line_s` for one average up and one down. What it computes
    is infinite where it is not known: its best.

    Each member moves one average, and what it sums besides. With all lines busy for the same time
    n + 1 members move 2 n averages in all.
    """
    theirs = now.sequences / now.passes_s if now.passes_s else math.inf
    passes_s = now.sequences / (theirs + sequences_per_s)
    if now.overlapped:
        return max(passes_s, line_s)
    exchange_s, others = max(now.seconds - now.passes_s, 0.0), now.peers - 1
    if others and exchange_s:
        their_line_s = exchange_s * now.peers / (2 * others)
        lines_per_s = now.peers / their_line_s + 1 / line_s
        exchange_s = 2 * now.peers / lines_per_s
    return passes_s + max(exchange_s, line_s)
