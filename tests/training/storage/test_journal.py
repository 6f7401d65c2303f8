"""The chain on disk: appended, verified from genesis, cut where a crash left it."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from atom.base.errors import PeerRefused, StorageError
from atom.base.reasons import Reason
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    Voter,
    genesis,
    vote_payload,
)
from atom.swarm.chain.commit_chain import parse_commits, verified_heads
from atom.swarm.chain.membership import signed_by
from atom.swarm.identity import Identity
from atom.training.storage.journal import Journal

IDENTITY = Identity.create()
ME = Voter(IDENTITY.peer_id, b"i" * 16)
GENESIS = genesis(b"m" * 32, b"s" * 32, ME)


def commit_on(head: Head, sequences: int = 8, signer: Identity = IDENTITY) -> Commit:
    ballot = Ballot(1, ME.peer_id, ME.incarnation)
    value = Value(
        parent=head.digest,
        round=head.round + 1,
        origin=ballot,
        result_digest=bytes([head.round % 256]) * 32,
        gradient_norm=0.5,
        parent_state_digest=b"d" * 32,
        contributions=(Contribution(ME.peer_id, ME.incarnation, sequences, 3.0),),
        voters_next=(ME,),
    )
    payload = vote_payload(head.digest, ballot, value.digest())
    signature = signer.sign(VOTE_DOMAIN, signed_by(ME, payload))
    return Commit(value, ballot, (Vote(ME, signature),))


def chain(length: int) -> list[Commit]:
    commits, head = [], GENESIS
    for _ in range(length):
        commits.append(commit_on(head))
        head = head.after(commits[-1].value)
    return commits


def written(path: Path, length: int) -> Journal:
    journal = Journal.open(path, GENESIS)
    for commit in chain(length):
        journal.append(commit)
    return journal


def test_reads_back_what_was_appended(tmp_path: Path) -> None:
    journal = written(tmp_path / "chain.bin", 5)
    again = Journal.open(tmp_path / "chain.bin", GENESIS)
    assert again.commits == journal.commits
    assert again.head == journal.head
    assert again.head.round == 5
    assert again.head.work == 40


def test_which_heads_are_on_the_chain(tmp_path: Path) -> None:
    journal = written(tmp_path / "chain.bin", 3)
    assert journal.leads_to(0, GENESIS.digest)
    assert journal.leads_to(2, journal.heads[2].digest)
    for number, head in ((-1, journal.heads[3]), (1, journal.heads[2]), (4, journal.heads[3])):
        assert not journal.leads_to(number, head.digest)


@pytest.mark.parametrize("lost", [1, 3, 50])
def test_an_unfinished_last_record_is_cut_off(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "chain.bin"
    journal = written(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    again = Journal.open(path, GENESIS)
    assert again.commits == journal.commits[:2]
    again.append(journal.commits[2])
    assert path.read_bytes() == whole


def test_another_runs_chain_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "chain.bin", 2)
    other = genesis(b"other manifest".ljust(32), b"s" * 32, ME)
    with pytest.raises(StorageError, match="genesis"):
        Journal.open(tmp_path / "chain.bin", other)


@pytest.mark.parametrize("place", [0, 4, 5, 40, 200])
def test_damage_inside_is_refused_not_guessed_at(tmp_path: Path, place: int) -> None:
    path = tmp_path / "chain.bin"
    written(path, 3)
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0x81
    path.write_bytes(bytes(raw))
    with pytest.raises(StorageError, match=r"chain\.bin"):
        Journal.open(path, GENESIS)
    assert path.read_bytes() == raw, "whoever looks into it finds what we found"


def test_a_forged_certificate_ends_a_chain() -> None:
    commits = chain(2)
    head = GENESIS.after(commits[0].value)
    commits[1] = commit_on(head, signer=Identity.create())
    with pytest.raises(PeerRefused) as refused:
        verified_heads(GENESIS, commits)
    assert refused.value.reason is Reason.BAD_CERTIFICATE


def test_a_gap_ends_a_chain() -> None:
    commits = chain(3)
    with pytest.raises(PeerRefused) as refused:
        verified_heads(GENESIS, [commits[0], commits[2]])
    assert refused.value.reason is Reason.WRONG_HEAD


def test_replace_takes_over_another_chain(tmp_path: Path) -> None:
    journal = written(tmp_path / "chain.bin", 2)
    other = [commit_on(GENESIS, sequences=99)]
    journal.replace(other, verified_heads(GENESIS, other))
    assert Journal.open(tmp_path / "chain.bin", GENESIS).commits == other


def test_what_the_disk_did_not_take_counts_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, commits = tmp_path / "chain.bin", chain(3)
    journal = written(path, 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            journal.append(commits[1])
    assert journal.head.round == 2
    journal.append(commits[2])
    assert Journal.open(path, GENESIS).commits == commits


def test_another_chain_that_the_disk_did_not_take_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "chain.bin", [commit_on(GENESIS, sequences=99)]
    journal = written(path, 2)

    def full(*paths: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError):
            journal.replace(other, verified_heads(GENESIS, other))
    other.append(commit_on(journal.head))
    journal.append(other[1])
    assert Journal.open(path, GENESIS).commits == other


def test_a_strangers_bytes_are_refused_by_name() -> None:
    with pytest.raises(PeerRefused):
        parse_commits((10).to_bytes(4, "big") + b"0123456789")
    with pytest.raises(PeerRefused) as refused:
        parse_commits((1 << 30).to_bytes(4, "big"))
    assert refused.value.reason is Reason.TOO_LARGE


# ---- long chains


def voted(head: Head, by: list[Identity], next_voters: list[Identity]) -> Commit:
    """A commit that these vote for."""
    ballot = Ballot(1, by[0].peer_id, INCARNATION)
    value = Value(
        parent=head.digest,
        round=head.round + 1,
        origin=ballot,
        result_digest=bytes(32),
        gradient_norm=0.5,
        parent_state_digest=b"d" * 32,
        contributions=(Contribution(by[0].peer_id, INCARNATION, 8, 3.0),),
        voters_next=tuple(sorted(Voter(each.peer_id, INCARNATION) for each in next_voters)),
    )
    return signed_value(head, value, by)


INCARNATION = b"i" * 16
OLD = [IDENTITY] + [Identity.create() for _ in range(2)]
NEW = [Identity.create() for _ in range(3)]


def grown(electorates: list[list[Identity]]) -> tuple[list[Head], list[Commit]]:
    """A chain on which each electorate decides one round."""
    heads, commits = [GENESIS], []
    for now, following in zip(electorates, [*electorates[1:], electorates[-1]], strict=True):
        commits.append(voted(heads[-1], now, following))
        heads.append(heads[-1].after(commits[-1].value))
    return heads, commits


@pytest.mark.parametrize("stripped", range(10))
def test_a_forged_certificate_is_found_wherever_it_lies(stripped: int) -> None:
    """Also where a later quorum vouches for the round: who keeps it would hand it on."""
    heads, commits = grown([[IDENTITY]] + [OLD] * 9)
    assert verified_heads(GENESIS, commits) == heads
    commits[stripped] = dataclasses.replace(commits[stripped], votes=())
    with pytest.raises(PeerRefused, match=f"round {stripped + 1}") as refused:
        verified_heads(GENESIS, commits)
    assert refused.value.reason is Reason.BAD_CERTIFICATE


def test_strangers_vouch_for_nothing() -> None:
    """A chain that leaves the run's own at some round, however long and well signed it is."""
    heads, commits = grown([[IDENTITY], OLD, OLD, OLD])
    for own in range(5):
        forged, head = commits[:own], heads[own]
        for _ in range(5):
            forged.append(voted(head, NEW, NEW))
            head = head.after(forged[-1].value)
        with pytest.raises(PeerRefused) as refused:
            verified_heads(GENESIS, forged)
        assert refused.value.reason is Reason.BAD_CERTIFICATE


def test_old_voters_vouch_only_for_what_was_committed() -> None:
    """They may have voted for a value that never had a quorum of the newer electorate."""
    five = [*OLD, *NEW[:2]]
    heads, commits = grown([[IDENTITY], [IDENTITY], five, five])
    alone = voted(heads[3], [IDENTITY], five)
    with pytest.raises(PeerRefused) as refused:
        verified_heads(GENESIS, [*commits[:3], alone])
    assert refused.value.reason is Reason.BAD_CERTIFICATE


def signed_value(head: Head, value: Value, by: list[Identity]) -> Commit:
    payload = vote_payload(head.digest, value.origin, value.digest())
    voters = [(each, Voter(each.peer_id, INCARNATION)) for each in by]
    votes = [Vote(me, each.sign(VOTE_DOMAIN, signed_by(me, payload))) for each, me in voters]
    return Commit(value, value.origin, tuple(votes))
