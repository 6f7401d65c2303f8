"""The checks of a run, and that the examination asks for the right box."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from atom.base.errors import AddressError
from atom.config.load import parse_peer_text
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory
from atom.extras.doctor import examination
from atom.extras.doctor.examination import Sight, box_of, data, examine, fit, from_outside
from atom.extras.doctor.this_box import Finding, Level, failure
from atom.models.data.tokenizer import byte_level_tokenizer
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Reached
from atom.swarm.records.manifest import Manifest
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.tiny_run import GPT3, TEXT


def test_our_own_peer_knows_whether_it_is_reached() -> None:
    reached = {"a": Reached.YES, "b": Reached.NO, "c": Reached.UNKNOWN}
    levels = [from_outside(reached, peer).level for peer in reached]
    assert levels == [Level.OK, Level.WARNING, Level.UNCHECKED]
    assert "[network] reachable" in from_outside(reached, "b").fix
    for own in (None, "gone"):
        assert "join" in from_outside(reached, own).said


def test_who_is_there() -> None:
    assert examination.alive("words", [], None).level is Level.WARNING
    assert "1 peer is alive" in examination.alive("words", ["a"], None).said
    assert "2 peers are alive" in examination.alive("words", ["a", "b"], "a").said
    assert "on this machine" in examination.alive("words", ["a"], "a").said


def test_other_versions_than_the_founder_s() -> None:
    here = examination.version_here("torch")
    assert here is not None
    (same,) = examination.versions([("torch", here)])
    assert same.level is Level.OK
    apart = [("torch", "0.1"), ("torch", here), ("no-such", "5.1"), ("", "5.1")]
    other, none, nameless = examination.versions(apart)
    assert f"founded with torch 0.1, here is {here}" in other.said
    assert "no-such 5.1, here is none" in none.said
    assert {other.level, none.level, nameless.level} == {Level.WARNING}


@pytest.fixture(scope="module", params=["own-copy"])
def manifest(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Manifest:
    with folder_in(tmp_path_factory.mktemp("founded")) as folder:
        return folder.found(GPT3, data=f'{TEXT}\nshare = "{request.param}"').manifest


def told(manifest: Manifest, peer: PeerFile, folder: Path, trains: bool = False) -> list[Finding]:
    return list(fit(Sight(manifest, None, {}), peer, folder, trains))


def test_a_run_fits_and_has_a_speed_or_says_what_it_lacks(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits, speed = told(manifest, PeerFile(), tmp_path)
    assert "fits: " in fits.said
    assert re.fullmatch(r"about [\d,]+ tokens/s here.*", speed.said)
    assert (fits.level, speed.level) == (Level.OK, Level.OK)
    small = parse_peer_text('[host]\nmemory = "1 kB"\n', tmp_path)
    (lacking,) = told(manifest, small, tmp_path)
    assert (lacking.level, "there are 1.0 kB" in lacking.said) == (Level.FAILURE, True)
    (its_own,) = told(manifest, small, tmp_path, trains=True)
    assert (its_own.level, "atom info" in its_own.said) == (Level.OK, True)
    full = type("Usage", (), {"free": 0})
    monkeypatch.setattr("shutil.disk_usage", lambda path: full)
    (lacking,) = told(manifest, PeerFile(), tmp_path / "new")
    assert (lacking.level, "of disk; there are 0 B" in lacking.said) == (Level.FAILURE, True)


def test_a_run_whose_model_cannot_be_made_here_is_a_failure(
    manifest: Manifest, tmp_path: Path
) -> None:
    run = json.loads(manifest.run_file)
    config = json.dumps({"model_type": "no-such"})
    run["model"] = {"huggingface": "c", "huggingface_config": config, "sequence_tokens": 8}
    other = replace(manifest, run_file=json.dumps(run))
    (lacking,) = told(other, PeerFile(), tmp_path)
    assert lacking.level is Level.FAILURE
    assert "no-such" in lacking.said
    assert lacking.fix


def test_the_data_that_join_will_read(manifest: Manifest, tmp_path: Path) -> None:
    lacking = data(manifest, PeerFile(), tmp_path, has_it=False)
    assert (lacking.level, lacking.fix[-27:]) == (Level.FAILURE, '[data]\npaths = ["text.txt"]')
    assert data(manifest, PeerFile(), tmp_path, has_it=True).level is Level.OK
    peer = parse_peer_text('[data]\npaths = ["copy.txt"]\n', tmp_path)
    assert "matches no file" in data(manifest, peer, tmp_path, has_it=False).said
    (tmp_path / "copy.txt").write_text("of another size: join tells")
    found = data(manifest, peer, tmp_path, has_it=False)
    assert (found.level, "tokens" in found.said) == (Level.OK, True)


@pytest.mark.parametrize("manifest", ["swarm"], indirect=True)
def test_of_a_text_that_comes_through_the_swarm_nobody_needs_a_copy(
    manifest: Manifest, tmp_path: Path
) -> None:
    found = data(manifest, PeerFile(), tmp_path, has_it=False)
    assert (found.level, "from the swarm" in found.said) == (Level.OK, True)
    named = parse_peer_text('[data]\npaths = ["copy.txt"]\n', tmp_path)
    assert "matches no file" in data(manifest, named, tmp_path, has_it=False).said


def test_another_tokenizer_than_the_run_s_is_found(manifest: Manifest, tmp_path: Path) -> None:
    run = json.loads(manifest.run_file)
    run["data"] |= {"tokenizer": "theirs.json", "tokenizer_sha256": "a" * 64}
    other = replace(manifest, run_file=json.dumps(run))
    (tmp_path / "mine.json").write_text(byte_level_tokenizer())
    (tmp_path / "copy.txt").write_text("text")
    copies = '[data]\npaths = ["copy.txt"]\ntokenizer = "mine.json"\n'
    found = data(other, parse_peer_text(copies, tmp_path), tmp_path, has_it=False)
    assert (found.level, "another tokenizer" in found.said) == (Level.FAILURE, True)


def test_what_cannot_be_seen_of_a_swarm_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unseen(address: str, state: Path) -> Finding:
        return failure("Swarm", "cannot reach it", "ask for it")

    monkeypatch.setattr(examination, "look", unseen)
    nobody = Identity.create().peer_id
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{nobody}/run/words/owner/{nobody}"
    *box, last = examine(address, None, tmp_path, lambda text: None)
    assert last == failure("Swarm", "cannot reach it", "ask for it")
    *alone, hint = examine(None, None, tmp_path, lambda text: None)
    assert [each.topic for each in alone] == [each.topic for each in box]
    assert "atom doctor ADDRESS" in hint.said


def test_with_an_address_it_looks_where_join_keeps_its_state(tmp_path: Path) -> None:
    """The state directory has the peer id that a run's owner may have listed."""
    identity = Identity.create().peer_id
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{identity}/run/words/owner/{identity}"
    assert box_of(address, None, None)[1] == default_state_directory("words")
    (tmp_path / "box.toml").write_text('[state]\ndirectory = "kept"\n')
    (tmp_path / "peer.toml").write_text('[network]\nupload = "1 Mbit/s"\n')
    assert box_of(address, tmp_path / "box.toml", None)[1] == tmp_path / "kept"
    assert box_of(address, tmp_path / "box.toml", tmp_path)[1] == tmp_path
    peer, _ = box_of(None, None, tmp_path)
    assert peer.network.upload_bits_per_s == 1e6, "the peer file of the state directory"
    assert box_of(None, None, None)[1] == default_state_directory("words").parent
    with pytest.raises(AddressError):
        box_of("nowhere", None, tmp_path)
