"""How much to train before looking up. Pure.

A peer first works off its fair share of the round without asking. Beyond that it helps the
slower ones, but only on what it knows: it waits for a look at the others' counts that is newer
than its own last pass. So the swarm meets the batch closely, at any model size, without
anybody extrapolating anybody's speed.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from atom.swarm.records.lease import Lease, PeerState
from atom.training.replica.settings import MAX_MICRO_BATCHES_PER_PASS
from atom.training.round.batch_policy import BatchPolicy
from atom.training.round.electorate import ACTIVE_STATES, same_head
from atom.training.round.events import View
from atom.training.round.machine import RoundMachine

READ_S, SELDOM_S = 0.4, 1.2
"""Between two readings of everybody's leases. The second is what the simulation bears, and less
than any time after which somebody counts as silent."""
SOON_S = 5.0


@dataclass(frozen=True)
class SwarmCount:
    """The others' counts for our head, as last seen at `seen_at` (seconds, our clock)."""

    others_sequences: int = 0
    peers: int = 1
    """Peers that accumulate for our head, ourselves included."""
    seen_at: float = float("-inf")
    sequences_per_s: float = 0.0
    """Theirs, as they say, of all together."""


def count_swarm(machine: RoundMachine, view: View, seen_at: float) -> SwarmCount:
    """What the others counted, and how many share the work: those at our head, and members of the
    last round whose new lease is still on its way. Not so who is paused, nor who leaves and has
    nothing counted. The view was read at `seen_at`."""
    head = machine.head
    aside, here = machine.status.aside, same_head(head, view)
    mates = {peer: lease for peer, lease in here.items() if peer not in aside}
    sharing = {peer for peer, lease in mates.items() if lease.sequences or not _leaves(lease)}
    behind = {
        peer
        for peer, lease in view.fresh.items()
        if lease.round < head.round and lease.state in ACTIVE_STATES and not _leaves(lease)
    }
    coming = behind.intersection(head.members) if behind else behind
    paused = {peer for peer, lease in view.fresh.items() if lease.state is PeerState.PAUSED}
    sequences = sum([lease.sequences for lease in mates.values()])
    per_s = sum([lease.sequences_per_s for lease in mates.values()])
    return SwarmCount(sequences, len((coming | sharing) - paused) + 1, seen_at, per_s)


def _leaves(lease: Lease) -> bool:
    """Then it sees to the round that it counted something for, if any, and begins no other."""
    return lease.state is PeerState.LEAVING


def next_pass(
    own_sequences: int,
    last_pass_ended: float,
    swarm: SwarmCount,
    policy: BatchPolicy,
    micro_batch: int,
    most: int = MAX_MICRO_BATCHES_PER_PASS,
) -> int:
    """Micro-batches to train in the next pass, at most `most`; 0: wait for news."""
    share = policy.share(swarm.peers)
    missing = policy.missing(own_sequences + swarm.others_sequences)
    if missing == 0:
        return 0
    if own_sequences < share:
        wanted = min(share - own_sequences, missing)
    elif swarm.seen_at > last_pass_ended:
        wanted = -(-missing // max(swarm.peers, 1))
    else:
        return 0
    return max(1, min(-(-wanted // micro_batch), most))


def reading_pause(
    own_sequences: int, own_per_s: float, swarm: SwarmCount, policy: BatchPolicy
) -> float:
    """Seconds to the next reading of the leases. While the batch is far away and a peer works off
    its own share, nothing that it does depends on news."""
    share = policy.share(swarm.peers)
    missing = policy.missing(own_sequences + swarm.others_sequences)
    is_far = missing > SOON_S * (own_per_s + swarm.sequences_per_s) > 0
    return SELDOM_S if is_far and own_sequences < share else READ_S


def usual_pass_seconds(passes: Sequence[tuple[int, float]]) -> float:
    """How long others should wait for a pass of ours, of recent ones (sequences, seconds).

    The largest at the median pace: a machine that was suspended in the middle of a pass is not
    slow, and whoever waits for its answer would wait as long again.
    """
    if not passes:
        return 0.0
    pace = statistics.median(seconds / max(sequences, 1) for sequences, seconds in passes)
    return pace * max(sequences for sequences, _ in passes)
