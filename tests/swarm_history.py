"""Facts that the events and chains of several peers must have in common after any fault."""

from collections.abc import Sequence
from pathlib import Path

from swarm_of_processes import Event, Peer, Swarm

from atom.daemon.model.kept_run import KeptRun
from atom.swarm.chain.commit import Commit, Head


def read_chain(state: Path, run: str) -> tuple[list[Commit], list[Head]]:
    """A peer's chain, every certificate checked; an append under way is not seen."""
    kept = KeptRun.read(state)
    assert kept.manifest.run == run
    return kept.journal.commits, kept.journal.heads


def digests_by_head(histories: Sequence[Sequence[Event]]) -> dict[str, str]:
    """Head → state digest, over everything that any peer ever said.

    Raises: AssertionError if one head was ever given two digests: a replica diverged.
    """
    found: dict[str, str] = {}
    for history in histories:
        for event in history:
            head, digest = event.get("head"), event.get("digest")
            if head and digest:
                assert found.setdefault(head, digest) == digest, f"two states of one head: {event}"
    return found


def check_peers(peers: Sequence[Peer], run: str) -> int:
    """Check ended peers: all chains are prefixes of the preferred chain, and every state that a
    peer ever reported is a state of that chain, or was discarded for a recorded branch.

    Returns how many reported rounds were discarded. Raises: AssertionError.
    """
    chains = [read_chain(peer.state, run) for peer in peers]
    commits, heads = max(chains, key=lambda chain: chain[1][-1].rank)
    for peer, (_, own) in zip(peers, chains, strict=True):
        assert own == heads[: len(own)], f"{peer.name} ended on another chain\n{peer.story()}"
    digests = digests_by_head([peer.events() for peer in peers])
    for head, commit in zip(heads, commits, strict=False):
        certified = commit.value.parent_state_digest.hex()
        assert digests.get(head.digest.hex(), certified) == certified, f"round {head.round}"
    kept = {head.digest.hex() for head in heads}
    branches = {commit.value.round for commit in commits if commit.survivors}
    return sum(_discarded(peer.rounds, kept, branches) for peer in peers)


def _discarded(rounds: Sequence[Event], kept: set[str], branches: set[int]) -> int:
    forked, discarded = False, 0
    for event in rounds:
        if event["head"] in kept:
            forked = False
            continue
        forked = forked or event["branch"] or event["round"] in branches
        assert forked, f"a round that is not the chain's, without a branch: {event}"
        discarded += 1
    return discarded


def all_end_on_one_chain(swarm: Swarm, run: str) -> int:
    """Pause all peers, wait for one common head, let them leave, and return `check_peers`."""
    for peer in swarm.peers:
        peer.ask("pause")
    swarm.until(lambda: at_one_head(swarm), "all peers at one head", 60.0)
    for peer in swarm.peers:
        peer.ask("leave", 60.0)
        assert peer.wait() == 0, swarm.story()
    return check_peers(swarm.peers, run)


def at_one_head(swarm: Swarm) -> bool:
    infos = [peer.ask("info") for peer in swarm.peers]
    standing = all(info["state"] == "paused" for info in infos)
    return standing and len({(info["round"], info["digest"]) for info in infos}) == 1


def others(swarm: Swarm, victim: Peer) -> list[Peer]:
    return [peer for peer in swarm.peers if peer is not victim]


def contributes(swarm: Swarm, victim: Peer, mark: int) -> bool:
    """Return True if the victim contributed to a common round after its first `mark` events."""
    heads = {event["head"] for peer in others(swarm, victim) for event in peer.rounds[-50:]}
    news = victim.rounds[mark:]
    return any(contribution(e, victim.peer_id) and e["head"] in heads for e in news)


def contribution(event: dict[str, list[object]], peer_id: str) -> object:
    return dict(zip(event["members"], event["contributed"], strict=True)).get(peer_id, 0)
