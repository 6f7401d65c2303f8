"""Pure functions that decide how much a peer trains before it reads the other peers' counts again.

A peer first trains its fair share of the round without asking. After that it helps slower peers,
but only with current knowledge: it waits for counts of the other peers that are newer than its own
last pass. So the swarm exceeds the global batch only a little, at any model size, without
extrapolating any peer's speed.
"""

import statistics
from collections.abc import Collection
from dataclasses import dataclass

from atom.swarm.records.lease import PeerState
from atom.training.round.electorate import ACTIVE_STATES, batch_of, believed, counted_leases
from atom.training.round.events import View
from atom.training.round.machine import RoundMachine

READ_S, SELDOM_S, RARELY_S = 0.4, 1.2, 3.0
"""Seconds between two readings of all leases: usually; while the batch is far away; and the same if
all these peers also send us their leases directly, so that only a newcomer would be seen late.

The second is the longest pause with which simulated swarms still work, and shorter than any time
after which a peer counts as silent.
"""
LONG_EXCHANGE_S = 10.0
"""Duration of the last exchange from which on leases are read seldom during the next one. The line
is busy then, and a peer that others can dial serves the readings of all that cannot be dialled."""
SOON_S = 5.0
RATED_S = 30.0
"""Largest age in seconds of a pass in a rate; for a longer pass, twice its duration."""
_WORKS = ACTIVE_STATES - {PeerState.PAUSED}
_BEGINS = _WORKS - {PeerState.LEAVING}
"""States in which a peer begins new work: a leaving peer only finishes the present round."""


@dataclass(frozen=True)
class SwarmCount:
    """Counts of the other peers for our head, as seen at `seen_at` (seconds, our clock)."""

    others_sequences: int = 0
    peers: int = 1
    """Peers that accumulate for our head, ourselves included, up to the places in an exchange."""
    seen_at: float = float("-inf")
    sequences_per_s: float = 0.0
    """Speed of all these peers together, as their leases claim."""

    def share(self, global_batch: int) -> int:
        """Return an equal share of the global batch, in sequences, rounded up.

        A peer trains its share before it considers the other peers' counts.
        """
        return -(-global_batch // self.peers)


def count_swarm(machine: RoundMachine, view: View) -> SwarmCount:
    """Return the other peers' counts for our head, and the number of peers that share the work.

    Peers that share the work are recent peers at our head, and members of the last round whose new
    lease has not arrived yet.
    """
    head = machine.head
    mates = counted_leases(head, view, machine.answered, machine.excluded)
    sharing = sum(each.state in (_WORKS if each.sequences else _BEGINS) for each in mates.values())
    beginning = [lease for lease in view.fresh.values() if lease.state in _BEGINS]
    behind = {lease.peer_id for lease in beginning if lease.round < head.round}
    most, own = machine.counted_peers, view.sequences
    counts = believed(head, mates, machine.global_batch, most)
    sequences = batch_of(head, {machine.me.peer_id: own} | counts, most) - own
    per_s = sum([lease.sequences_per_s for lease in mates.values()])
    peers = min(1 + sharing + len(behind.intersection(head.members)), most)
    return SwarmCount(sequences, peers, view.seen_at, per_s)


def next_pass(
    own_sequences: int,
    last_pass_ended: float,
    swarm: SwarmCount,
    global_batch: int,
    micro_batch: int,
    most: int,
) -> int:
    """Return the micro-batches of the next pass, at most `most`; 0: wait for new counts.

    Args:
        own_sequences: Sequences that this peer has counted for the round.
        last_pass_ended: Time at which the last pass ended, in seconds.
        swarm: Counts of the other peers, as last read.
        global_batch: Sequences per round.
        micro_batch: Sequences per micro-batch.
        most: Most micro-batches of a pass.
    """
    share = swarm.share(global_batch)
    missing = global_batch - own_sequences - swarm.others_sequences
    if missing <= 0:
        return 0
    if own_sequences < share:
        wanted = min(share - own_sequences, missing)
    elif swarm.seen_at > last_pass_ended:
        wanted = -(-missing // swarm.peers)
    else:
        return 0
    return max(1, min(-(-wanted // micro_batch), most))


def reading_pause(
    own_sequences: int, own_per_s: float, swarm: SwarmCount, global_batch: int
) -> float:
    """Return the seconds until the next reading of the leases.

    The pause is long while the batch is far away and a peer still trains its own share, because the
    peer needs no new counts then.

    Args:
        own_sequences: Sequences that this peer has counted for the round.
        own_per_s: Sequences per second of this peer.
        swarm: Counts of the other peers, as last read.
        global_batch: Sequences per round.
    """
    missing = global_batch - own_sequences - swarm.others_sequences
    is_far = missing > SOON_S * (own_per_s + swarm.sequences_per_s) > 0
    return SELDOM_S if is_far and own_sequences < swarm.share(global_batch) else READ_S


def with_news(pause_s: float, hears_all: bool) -> float:
    """Return a pause between two readings, longer if all peers send us their leases themselves."""
    return RARELY_S if hears_all and pause_s >= SELDOM_S else pause_s


@dataclass(frozen=True)
class Pass:
    """Pass that counted. Both times are in seconds of the same clock."""

    began: float
    ended: float
    sequences: int


def usual_pass_seconds(passes: Collection[Pass]) -> float:
    """Return how many seconds other peers should wait for a pass of ours, from recent passes.

    It is the duration of the largest pass at the median pace. The longest duration would be wrong:
    a machine that was suspended during a pass is not slow, and other peers would then wait as long
    for its next answer.
    """
    pace = statistics.median((each.ended - each.began) / each.sequences for each in passes)
    return pace * max(each.sequences for each in passes)


def sequences_per_s(passes: Collection[Pass], now: float) -> float:
    """Return the speed over the last `RATED_S`, or two long passes, idle time included."""
    recent = [p for p in passes if now - p.ended <= max(RATED_S, 2 * (p.ended - p.began))]
    span = now - min((each.began for each in recent), default=now)
    return sum(each.sequences for each in recent) / max(span, 1e-3)
