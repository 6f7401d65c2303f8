"""How much to train before looking up. Pure.

A peer first works off its fair share of the round without asking. Beyond that it helps the
slower ones, but only on what it knows: it waits for a look at the others' counts that is newer
than its own last pass. So the swarm meets the batch closely, at any model size, without
anybody extrapolating anybody's speed.
"""

import statistics
from collections.abc import Collection
from dataclasses import dataclass

from atom.swarm.records.lease import PeerState
from atom.training.round.electorate import ACTIVE_STATES, same_head
from atom.training.round.events import View
from atom.training.round.machine import RoundMachine

READ_S, SELDOM_S = 0.4, 1.2
"""Between two readings of everybody's leases. The second is what the simulation bears, and less
than any time after which somebody counts as silent."""
SOON_S = 5.0
RATED_S = 30.0
"""Passes that ended longer ago are in no rate, or twice as long ago as they took."""
_WORKS = ACTIVE_STATES - {PeerState.PAUSED}
_BEGINS = _WORKS - {PeerState.LEAVING}
"""A peer that leaves sees to the round that it counted something for, and begins no other."""


@dataclass(frozen=True)
class SwarmCount:
    """The others' counts for our head, as last seen at `seen_at` (seconds, our clock)."""

    others_sequences: int = 0
    peers: int = 1
    """Peers that accumulate for our head, ourselves included."""
    seen_at: float = float("-inf")
    sequences_per_s: float = 0.0
    """Theirs, as they say, of all together."""

    def share(self, global_batch: int) -> int:
        """What a peer trains before it looks at the others' counts."""
        return -(-global_batch // self.peers)


def count_swarm(machine: RoundMachine, view: View) -> SwarmCount:
    """What the others counted, and how many share the work: those at our head, and members of the
    last round whose new lease is still on its way."""
    head, aside = machine.head, machine.aside
    mates = [lease for peer, lease in same_head(head, view).items() if peer not in aside]
    sharing = sum(lease.state in (_WORKS if lease.sequences else _BEGINS) for lease in mates)
    beginning = [lease for lease in view.fresh.values() if lease.state in _BEGINS]
    behind = {lease.peer_id for lease in beginning if lease.round < head.round}
    sequences = sum([lease.sequences for lease in mates])
    per_s = sum([lease.sequences_per_s for lease in mates])
    peers = 1 + sharing + len(behind.intersection(head.members))
    return SwarmCount(sequences, peers, view.seen_at, per_s)


def next_pass(
    own_sequences: int,
    last_pass_ended: float,
    swarm: SwarmCount,
    global_batch: int,
    micro_batch: int,
    most: int,
) -> int:
    """Micro-batches to train in the next pass, at most `most`; 0: wait for news."""
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
    """Seconds to the next reading of the leases. While the batch is far away and a peer works off
    its own share, nothing that it does depends on news."""
    missing = global_batch - own_sequences - swarm.others_sequences
    is_far = missing > SOON_S * (own_per_s + swarm.sequences_per_s) > 0
    return SELDOM_S if is_far and own_sequences < swarm.share(global_batch) else READ_S


@dataclass(frozen=True)
class Pass:
    """One that counted. Times are of one clock."""

    began: float
    ended: float
    sequences: int


def usual_pass_seconds(passes: Collection[Pass]) -> float:
    """How long others should wait for a pass of ours, by recent ones.

    The largest at the median pace: a machine that was suspended in the middle of a pass is not
    slow, and whoever waits for its answer would wait as long again.
    """
    pace = statistics.median((each.ended - each.began) / each.sequences for each in passes)
    return pace * max(each.sequences for each in passes)


def sequences_per_s(passes: Collection[Pass], now: float) -> float:
    """Over the last `RATED_S`, or two long passes, idle time included."""
    recent = [p for p in passes if now - p.ended <= max(RATED_S, 2 * (p.ended - p.began))]
    span = now - min((each.began for each in recent), default=now)
    return sum(each.sequences for each in recent) / max(span, 1e-3)
