"""Tells a volunteer, before the peer takes part, that it would slow the run down. It refuses
nothing, and says nothing where it cannot know."""

import math
import statistics
from collections.abc import Iterable

from atom.base.units import format_bits_per_s
from atom.config.peer_file import Network
from atom.config.run_file import LOCAL_STEPS, RunFile
from atom.plan.newcomer import Newcomer, RoundNow, seconds_with
from atom.swarm.exchange.codec import codec_named
from atom.swarm.records.lease import Lease, PeerState

WORTH_SAYING = 1.01
"""Times as long; what is below is noise."""
_ABSENT = {PeerState.LEFT, PeerState.LEAVING, PeerState.PAUSED}


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
    caps = (network.upload_bits_per_s, network.download_bits_per_s)
    cap = min((cap for cap in caps if cap is not None), default=None)
    if cap is None or now is None:
        return ""
    line_s = codec_named(run.swarm.codec).wire_bytes(elements) / (cap / 8)
    rate = run.batch.micro_batch_sequences / micro_batch_s if micro_batch_s else math.inf
    with_us = seconds_with(now, Newcomer(line_s, rate))
    if with_us < WORTH_SAYING * now.seconds:
        return ""
    helps = ["more sequences a round", "a coarser codec"]
    helps += [] if now.overlapped else ["local steps"]
    return (
        f"this peer would slow the run down: a round takes {now.seconds:,.1f} s now, and about "
        f"{with_us:,.1f} s with it, as its line of {format_bits_per_s(cap)} carries one average in "
        f"{line_s:,.1f} s. What would help: a faster line ([network] upload, download), or, in "
        f"another run file, {', '.join(helps)}"
    )
