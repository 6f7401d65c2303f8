"""A run that is finished is not set up again to find that out."""

import json
import shutil
from pathlib import Path

import pytest

from atom.base.errors import AllowanceError, StorageError
from atom.daemon.peer import setup
from atom.daemon.peer.box import JoinOptions, StartOptions, open_box, read_manifest
from atom.daemon.peer.founding import run_of
from atom.daemon.peer.lifecycle import Ending
from atom.daemon.peer.setup import run_join, run_start, says_finished
from atom.daemon.state_directory import StateDirectory
from atom.swarm.addresses import JoinAddress, format_join_address
from atom.swarm.identity import Identity
from tests.daemon.peer.small_peer import Notes, found_in, small_peer
from tests.daemon.silence import Silence
from tests.daemon.tiny_run import TINY_RUN


def of_rounds(rounds: int) -> str:
    return TINY_RUN.replace("[run]", f"[run]\nrounds = {rounds}")


class Finished:
    """A run of one round, and the state directory of its founder after it."""

    def __init__(self, root: Path) -> None:
        self.run_file, self.state = root / "run.toml", root / "state"
        self.run_file.write_text(of_rounds(1))
        self._owner = Identity.load_or_create(self.state / "identity.key").peer_id

    def start(self, console: Silence) -> Ending:
        return run_start(StartOptions(self.run_file, state=self.state), console)

    def join(self, console: Silence, run: str = "tiny") -> Ending:
        address = JoinAddress((f"/ip4/127.0.0.1/tcp/9/p2p/{self._owner}",), run, self._owner)
        return run_join(JoinOptions(format_join_address(address), state=self.state), console)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    with small_peer(root / "state", found_in(root, of_rounds(1)), Silence()) as peer:
        assert peer.run() is Ending.ROUNDS_REACHED
    (root / "state" / "events.jsonl").unlink()
    return root


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Finished:
    return Finished(shutil.copytree(trained, tmp_path / "run"))


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
        assert console.notes == [
            "reading the chain of tiny",
            "ended at round 1: the run is finished; `atom export FOLDER` writes the model",
        ]
    events = (finished.state / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["ending"] for line in events] == ["rounds-reached"] * 2


def test_what_is_not_the_end_of_this_very_run_goes_on(finished: Finished) -> None:
    with pytest.raises(WentOn):
        finished.join(Silence(), "another")
    finished.run_file.write_text(of_rounds(2))
    with pytest.raises(WentOn):
        finished.start(Silence())
    finished.run_file.write_text(of_rounds(1))
    for snapshot in (finished.state / "snapshots").iterdir():  # damage all of them
        raw = bytearray(snapshot.read_bytes())
        raw[-1] ^= 1
        snapshot.write_bytes(raw)
    with pytest.raises(WentOn):
        finished.start(Silence())


def test_a_manifest_that_cannot_be_read_is_said_by_who_takes_the_run_up(
    finished: Finished,
) -> None:
    box = open_box("tiny", None, finished.state, Silence())
    try:
        manifest, _ = read_manifest(box, "tiny") or pytest.fail("it is kept")
        box.state.manifest.unlink()
        box.state.manifest.mkdir()
        assert not says_finished(box, "tiny", manifest.owner, None)
        with pytest.raises(StorageError, match="cannot be read: Is a directory") as caught:
            run_of(manifest, box)
    finally:
        box.state.unlock()
    assert "--state DIR" in caught.value.hint


def test_a_run_whose_month_is_used_up_does_not_enter_the_dht(finished: Finished) -> None:
    finished.run_file.write_text(of_rounds(2))
    (finished.state / "peer.toml").write_text('[network]\nper_month = "1 kB"\n')
    traffic = StateDirectory(finished.state).traffic
    traffic.write_text('{"days": {}, "round_bytes": 900, "per_month": 1000}')
    with pytest.raises(AllowanceError, match="its 1000 B a month"):
        finished.start(Silence())
