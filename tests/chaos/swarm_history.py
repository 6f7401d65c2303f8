"""What several peers' events and chains must have in common, whatever happened to them."""

from collections.abc import Sequence
from pathlib import Path

from swarm_of_processes import Event, Peer

from atom.swarm.chain.commit import Commit, Head, Voter, genesis
from atom.swarm.chain.commit_chain import parse_commits, verified_heads
from atom.swarm.chain.membership import certificate_problem
from atom.swarm.records.codec import decode_manifest
from atom.swarm.records.manifest import Manifest, manifest_digest


def read_manifest(state: Path, run: str) -> Manifest:
    return decode_manifest((state / "manifest.bin").read_bytes(), run)


def read_chain(state: Path, run: str) -> tuple[list[Commit], list[Head]]:
    """A peer's chain, every certificate checked; an append under way is not seen."""
    manifest = read_manifest(state, run)
    founder = Voter(manifest.owner, manifest.founder_incarnation)
    root = genesis(manifest_digest(manifest), manifest.initial_state_digest, founder)
    path = state / "chain.bin"
    commits, _ = parse_commits(path.read_bytes() if path.exists() else b"")
    heads = verified_heads(root, commits)
    problems = map(certificate_problem, heads, commits)
    assert not any(problems), "a long chain is believed for less; here none may be amiss"
    return commits, heads


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


def check_against_chain(
    histories: Sequence[Sequence[Event]], commits: Sequence[Commit], heads: Sequence[Head]
) -> int:
    """Every state ever reported is the chain's, or was discarded for a recorded branch.

    Returns how many reported rounds were discarded. Raises: AssertionError.
    """
    digests = digests_by_head(histories)
    for head, commit in zip(heads, commits, strict=False):
        certified = commit.value.parent_state_digest.hex()
        assert digests.get(head.digest.hex(), certified) == certified, f"round {head.round}"
    kept = {head.digest.hex() for head in heads}
    branches = {commit.value.round for commit in commits if commit.survivors}
    discarded = 0
    for history in histories:
        forked = False
        for event in (event for event in history if event["event"] == "round"):
            if event["head"] in kept:
                forked = False
                continue
            forked = forked or event["branch"] or event["round"] in branches
            assert forked, f"a round that is not the chain's, without a branch: {event}"
            discarded += 1
    return discarded


def check_peers(peers: Sequence[Peer], run: str) -> int:
    """`check_against_chain` for ended peers: all their chains are prefixes of the preferred one."""
    chains = [read_chain(peer.state, run) for peer in peers]
    commits, heads = max(chains, key=lambda chain: chain[1][-1].rank)
    for peer, (_, own) in zip(peers, chains, strict=True):
        assert own == heads[: len(own)], f"{peer.name} ended on another chain\n{peer.story()}"
    histories = [peer.events() for peer in peers]
    return check_against_chain(histories, commits, heads)
