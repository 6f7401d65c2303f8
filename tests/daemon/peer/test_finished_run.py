"""A run that is finished is not set up again to find that out."""

import json
import shutil
from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.daemon.console import Silence
from atom.daemon.model.run_optimizer import load_run
from atom.daemon.peer import setup
from atom.daemon.peer.box import Box, JoinOptions, StartOptions, read_manifest
from atom.daemon.peer.founding import Membership, found_run, run_of
from atom.daemon.peer.lifecycle import Ending
from atom.daemon.peer.setup import run_join, run_start, says_finished
from atom.swarm.addresses import JoinAddress, format_join_address
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    signed_by,
    vote_payload,
)
from atom.swarm.identity import Identity
from atom.swarm.state.arenas import state_digest
from atom.training.storage.run_storage import Journal, write_snapshot
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.peer.small_peer import Notes
from tests.daemon.tiny_run import TINY_RUN


class Finished:
    """A run of one round, and the state directory of its founder after it."""

    def __init__(self, root: Path, owner: str) -> None:
        self._root, self._owner, self._run_file = root, owner, root / "run.toml"
        self.state = root / "state"
        self.options = StartOptions(self._run_file)

    def write(self, rounds: int) -> None:
        name = f'name = "kept"\nrounds = {rounds}'
        self._run_file.write_text(TINY_RUN.replace('name = "tiny"', name))

    def start(self, console: Silence) -> Ending:
        return run_start(StartOptions(self._run_file, state=self.state), console)

    def join(self, console: Silence, run: str = "kept") -> Ending:
        address = JoinAddress((f"/ip4/127.0.0.1/tcp/9/p2p/{self._owner}",), run, self._owner)
        return run_join(JoinOptions(format_join_address(address), state=self.state), console)

    def train(self) -> None:
        with folder_in(self._root) as folder:
            box, options = folder.box("state"), self.options
            member = found_run(options, box, load_run(options.run_file))
            commit, head = _commit(box, member)
            Journal(box.state.chain, member.genesis).append(commit)
            state = member.replica.state_arenas()
            write_snapshot(box.state.snapshots, head.round, head.digest, state_digest(state), state)


def _commit(box: Box, member: Membership) -> tuple[Commit, Head]:
    me = member.genesis.voters[0]
    ballot = Ballot(1, me.peer_id, me.incarnation)
    given = (Contribution(me.peer_id, me.incarnation, 8, 3.0),)
    value = Value(member.genesis.digest, 1, ballot, b"r" * 32, 0.5, b"s" * 32, given, (me,))
    payload = vote_payload(member.genesis.digest, ballot, value.digest())
    vote = Vote(me, box.identity.sign(VOTE_DOMAIN, signed_by(me, payload)))
    return Commit(value, ballot, (vote,)), member.genesis.after(value)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    run = Finished(root, "")
    run.write(rounds=1)
    run.train()
    return root


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Finished:
    root = shutil.copytree(trained, tmp_path / "run")
    owner = Identity.load_or_create(root / "state" / "identity.key").peer_id
    return Finished(root, owner)


class WentOn(Exception):
    pass


@pytest.fixture(autouse=True)
def going_on_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> None:
        raise WentOn

    monkeypatch.setattr(setup, "enter_dht", look)


def test_started_or_joined_again_it_ends_before_it_enters_the_dht(finished: Finished) -> None:
    for again in (finished.start, finished.join):
        console = Notes()
        assert again(console) is Ending.ROUNDS_REACHED
        assert console.notes[1:] == [
            "ended at round 1: the run is finished; `atom export FOLDER` writes the model"
        ]
    events = (finished.state / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["ending"] for line in events] == ["rounds-reached"] * 2


def test_a_run_file_that_wants_more_rounds_is_held_against_the_run(finished: Finished) -> None:
    finished.write(rounds=2)
    with pytest.raises(WentOn):
        finished.start(Silence())


def test_a_last_state_that_is_damaged_is_not_the_end(finished: Finished) -> None:
    (snapshot,) = (finished.state / "snapshots").iterdir()
    raw = bytearray(snapshot.read_bytes())
    raw[-1] ^= 1
    snapshot.write_bytes(raw)
    with pytest.raises(WentOn):
        finished.start(Silence())


def test_a_manifest_that_cannot_be_read_is_said_by_who_takes_the_run_up(
    finished: Finished,
) -> None:
    with folder_in(finished.state.parent) as folder:
        box, options = folder.box("state"), finished.options
        manifest, _ = read_manifest(box, "kept") or pytest.fail("it is kept")
        box.state.manifest.unlink()
        box.state.manifest.mkdir()
        assert not says_finished(box, "kept", None, None)
        with pytest.raises(StorageError, match="cannot be read: Is a directory") as started:
            found_run(options, box, load_run(options.run_file))
        with pytest.raises(StorageError, match="cannot be read: Is a directory"):
            run_of(manifest, box)
    assert "--state DIR" in started.value.hint


def test_another_run_is_not_finished_with_this_one(finished: Finished) -> None:
    with pytest.raises(WentOn):
        finished.join(Silence(), "another")
