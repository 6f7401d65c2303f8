"""A peer knows its name before it joins, and is told in words when it is not on the list."""

from pathlib import Path

import pytest

from atom.base.errors import TrustError
from atom.cli.app import main
from atom.cli.shell.failures import ExitCode, exit_code_of
from atom.daemon.peer.box import check_member, open_box, own_peer_id
from atom.swarm.identity import Identity, is_peer_id
from atom.swarm.records.manifest import listed_peers
from tests.daemon.silence import Silence


def test_who_is_not_on_the_list_is_told_its_own_name_and_whom_to_ask() -> None:
    listed = listed_peers("owner", ["ann"])
    for let_in in ("owner", "ann"):
        check_member(listed, "owner", let_in)
    check_member(None, "owner", "stranger")
    with pytest.raises(TrustError, match="this peer is not listed: stranger") as caught:
        check_member(listed, "owner", "stranger")
    assert "ask its owner owner" in caught.value.hint
    assert exit_code_of(caught.value) is ExitCode.TRUST


def test_the_id_is_the_one_that_the_daemon_will_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    mine = own_peer_id("tiny", None, None)
    assert is_peer_id(mine)
    owner, node = Identity.create().peer_id, Identity.create().peer_id
    address = f"/ip4/203.0.113.7/tcp/31337/p2p/{node}/run/tiny/owner/{owner}"
    assert own_peer_id(address, None, None) == mine
    assert own_peer_id("other", None, None) != mine, "each run has its own"
    box = open_box("tiny", None, None, Silence())
    try:
        assert box.identity.peer_id == mine
        assert own_peer_id("tiny", None, None) == mine, "also while the daemon runs"
    finally:
        box.state.unlock()


def test_a_directory_that_is_named_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "peer.toml").write_text('[state]\ndirectory = "configured"\n')
    configured = own_peer_id(None, tmp_path / "peer.toml", None)
    assert own_peer_id("tiny", None, tmp_path / "configured") == configured
    assert own_peer_id("tiny", tmp_path / "peer.toml", tmp_path / "named") != configured
    assert main(["id", "--state", str(tmp_path / "configured")]) == 0
    assert capsys.readouterr().out == f"{configured}\n"
