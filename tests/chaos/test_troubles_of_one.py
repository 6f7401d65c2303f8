"""One daemon and its machine's troubles: a full disk, a port that is taken, a state directory that
was taken away."""

import socket
from collections.abc import Iterator

import pytest
from swarm_of_processes import START_S, Peer, Swarm, ending, endless, swarm_in

PORT, STORAGE = 5, 6
FULL_AT_BYTES = 300_000
"""Room for tokens and results, not for a snapshot."""


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with swarm_in(tmp_path_factory.mktemp("one"), ending("alone", 5), ["ada"]) as swarm:
        yield swarm


def ends_with(swarm: Swarm, code: int) -> str:
    """What the founder says on its way out; a user's trouble is told without a traceback."""
    peer = swarm.founder
    assert peer.wait(START_S) == code, peer.story()
    assert "Traceback" not in peer.errors()
    assert swarm.left_over() == []
    return peer.errors()


@pytest.mark.timeout(4 * START_S)
def test_a_full_disk_pauses_snapshots_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = endless("alone", 2, 2)
    with swarm_in(tmp_path_factory.mktemp("full"), run, ["ada"]) as swarm:
        peer = swarm.founder
        peer.start("start", str(swarm.run_file), file_size_bytes=FULL_AT_BYTES)
        swarm.until(lambda: peer.last_round >= 5, "rounds without a snapshot", START_S)
        assert peer.control.info()["disk"]["snapshots"] == []
        assert "snapshots" in peer.control.info()["disk"]["paused"]
        assert [event["what"] for event in peer.events("disk-full")] == ["snapshots"]
        swarm.until(lambda: "cannot write" in peer.errors(), "words on the terminal", START_S)
        peer.give_room()
        swarm.until(lambda: peer.events("disk-room"), "a snapshot again", START_S)
        assert peer.control.info()["disk"]["paused"] == {}


def test_a_port_that_is_taken(alone: Swarm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        alone.founder.start("start", str(alone.run_file), "--listen", f"127.0.0.1:{port}")
        said = ends_with(alone, PORT)
    assert f"127.0.0.1:{port}" in said
    assert "hint:" in said


@pytest.mark.timeout(4 * START_S)
def test_who_begins_where_a_directory_was_taken_away_does_not_wait_for_ever(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = endless("alone", 2, 2)
    with swarm_in(tmp_path_factory.mktemp("gone"), run, ["ada"]) as swarm:
        before, after = swarm.founder, Peer("ada", swarm.root)
        swarm.peers.append(after)
        before.start("start", str(swarm.run_file))
        swarm.until(lambda: before.last_round >= 2, "rounds", START_S)
        before.state.rename(swarm.root / "taken away")
        after.start("start", str(swarm.run_file))
        assert before.wait(START_S) == STORAGE
        assert f"error: the state directory {before.state} was deleted or moved" in before.errors()
        swarm.until(lambda: after.last_round >= 2, "rounds of another peer", START_S)
        assert "Traceback" not in after.errors()
