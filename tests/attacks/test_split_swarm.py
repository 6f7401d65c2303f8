"""A swarm that a double vote has split, and a peer that rejoins the part that the owner chose.

The voters' keys sign a second value for the last round, and one peer's chain ends with it. It keeps
that round against the owner's chain, until it is started with an address that the owner signed.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from swarm_of_processes import START_S, Event, Peer, Swarm, endless, gather, swarm_in

from atom.swarm.chain.commit import Commit
from atom.swarm.chain.commit_chain import parse_commits, record_of
from atom.swarm.identity import Identity
from tests.swarm.chain_samples import vote

RUN = "split"
ROUNDS = 3
SOON_S = 60.0


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    """Two voters that trained, and were killed."""
    run = endless(RUN, grace_s=4, snapshot_rounds=2)
    with swarm_in(tmp_path, run, ["owner", "member"], memory="auto") as swarm:
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        swarm.until(
            lambda: min(peer.last_round for peer in swarm.peers) >= ROUNDS, "rounds", SOON_S
        )
        for peer in swarm.peers:
            peer.kill()
        yield swarm


def chain_of(peer: Peer) -> Path:
    return peer.state / "chain.bin"


def another(commit: Commit, keys: dict[str, Identity]) -> Commit:
    """Return a commit of the same round that says otherwise how well it went, with true votes."""
    first, *rest = commit.value.contributions
    told = replace(first, loss_sum=first.loss_sum / 2)
    value = replace(commit.value, contributions=(told, *rest))
    votes = (
        vote(keys[each.voter.peer_id], value, commit.ballot, voter=each.voter)
        for each in commit.votes
    )
    return Commit(value, commit.ballot, tuple(votes))


def split(swarm: Swarm) -> int:
    """Give the owner and one member two last rounds on one parent; return the round."""
    keys = {
        peer.peer_id: Identity.load_or_create(peer.state / "identity.key") for peer in swarm.peers
    }
    owner, member = swarm.peers
    chains = [parse_commits(chain_of(peer).read_bytes())[0] for peer in (owner, member)]
    last = min(map(len, chains))
    true = chains[0][:last]
    assert true == chains[1][:last]
    for peer, chain in ((owner, true), (member, [*true[:-1], another(true[-1], keys)])):
        chain_of(peer).write_bytes(b"".join(map(record_of, chain)))
    return last


@pytest.mark.timeout(600)
def test_a_member_keeps_its_round_until_the_owner_signs_another(swarm: Swarm) -> None:
    last = split(swarm)
    owner, member = swarm.peers
    (owner.state / "paused").touch()
    owner.start()
    swarm.until(owner.info, "the owner is back", START_S)
    swarm.until(lambda: owner.info()["round"] == last, "it has its state")
    signed = owner.info()["pinned_address"]

    member.start("join", signed.rpartition("/head/")[0])
    swarm.until(
        lambda: member.events("double-vote") + owner.events("double-vote"), "proof", START_S
    )
    told = (member.events("double-vote") + owner.events("double-vote"))[0]
    assert (told["round"], told["all_lied"]) == (last, True)
    assert not member.events("caught-up")
    member.kill()

    (member.state / "paused").touch()
    member.start("join", signed)
    swarm.until(lambda: member.events("caught-up"), "the member gives up its round", START_S)
    swarm.until(lambda: member.info().get("digest") == owner.info()["digest"], "the state")
    assert chain_of(member).read_bytes() == chain_of(owner).read_bytes()
    for peer in (owner, member):
        peer.ask("resume")
    swarm.until(lambda: together(owner, last) and together(member, last), "rounds", SOON_S)
    assert together(owner, last)[0]["head"] == together(member, last)[0]["head"]


def together(peer: Peer, last: int) -> list[Event]:
    """Return the rounds after `last` that both peers contributed to."""
    return [each for each in peer.rounds if each["round"] > last and len(each["members"]) == 2]
