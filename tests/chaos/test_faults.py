"""Kill, freeze and restart real daemons during rounds, and trouble their wires: no divergence, no
stuck swarm, no orphan.

Twice each here, wires once. The long form is the same tests under
`ATOM_CHAOS_TIMES=32 ATOM_CHAOS_FREEZE_S=10` (see the Makefile).
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import psutil
import pytest
from swarm_history import all_end_on_one_chain, contributes, others
from swarm_of_processes import START_S, Peer, Swarm, endless, free_port, gather, swarm_in
from wire import Trouble, Wire

TIMES = int(os.environ.get("ATOM_CHAOS_TIMES", "2"))
FREEZE_S = float(os.environ.get("ATOM_CHAOS_FREEZE_S", "3"))
BOUND_S = 30.0
"""Time within which the other peers commit again, and the victim contributes again."""
GRACE_S = 2.0
PATIENCE_S = TIMES * (FREEZE_S + 2 * START_S)
RUN = "faults"
Fault = Callable[[Swarm, Peer, int], AbstractContextManager[None]]
"""Context in which the victim has no part in rounds."""
Damage = tuple[tuple[str, Callable[[Path], None]], ...]
"""Files of the state directory, and the damage to each."""


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def emptied(path: Path) -> None:
    """Empty a file, as a power cut may do to a file whose name had reached the disk."""
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 0xFF
    path.write_bytes(raw)


SNAPSHOTS, RESULTS, CHAIN = "snapshots/*.safetensors", "results/*.safetensors", "chain.bin"
DAMAGES: tuple[Damage, ...] = (
    ((SNAPSHOTS, halved),),
    ((RESULTS, flipped),),
    (),
    ((CHAIN, torn),),
    ((RESULTS, emptied),),
    ((SNAPSHOTS, flipped),),
    ((CHAIN, Path.unlink),),
    ((SNAPSHOTS, Path.unlink), (RESULTS, Path.unlink), (CHAIN, Path.unlink)),
)


def deal(damage: Damage, state: Path) -> None:
    for pattern, deed in damage:
        for path in sorted(state.glob(pattern)):
            deed(path)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """Yield a wire to bob, who announces the host at the wire's entry."""
    with closing(Wire("127.0.0.2", free_port())) as wire:
        yield wire


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, wire: Wire) -> Iterator[Swarm]:
    names = ("ada", "bob", "cyd")
    with swarm_in(tmp_path_factory.mktemp("of"), endless(RUN, GRACE_S, 10), names) as swarm:
        swarm.peers[1].configure(f'data_port = {wire.port}\nannounce = ["{wire.host}"]')
        swarm.peers[2].configure('reachable = "no"')  # it takes part by dialling out
        swarm.found(standing=True)
        gather(swarm)
        swarm.resume()
        yield swarm


@contextmanager
def killed(swarm: Swarm, victim: Peer, _: int) -> Iterator[None]:
    assert victim.kill() == [], "SIGKILL left processes behind"
    yield
    starts_again(swarm, victim)


@contextmanager
def frozen(swarm: Swarm, victim: Peer, attempt: int) -> Iterator[None]:
    ends_at = time.monotonic() + FREEZE_S
    victim.freeze(whole_family=attempt % 2 == 0)
    try:
        yield
        swarm.until(lambda: time.monotonic() >= ends_at, "the end of the freeze", FREEZE_S + 1)
    finally:
        victim.thaw()


@contextmanager
def restarted_with_damaged_files(swarm: Swarm, victim: Peer, attempt: int) -> Iterator[None]:
    """The victim leaves cleanly, and then finds damaged files on its disk."""
    family = victim.family()
    victim.ask("leave", 60.0)
    assert victim.wait() == 0, victim.story()
    assert victim.events("left")[-1]["ending"] == "left"
    assert psutil.wait_procs(family, timeout=5.0)[1] == []
    deal(DAMAGES[attempt % len(DAMAGES)], victim.state)
    yield
    starts_again(swarm, victim)


def starts_again(swarm: Swarm, victim: Peer) -> None:
    lives = victim.lives
    victim.start()
    swarm.until(lambda: victim.lives > lives or victim.exit_code, "its new life", START_S)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("attempt", range(TIMES))
@pytest.mark.parametrize("fault", [killed, frozen, restarted_with_damaged_files])
def test_during_a_round(three: Swarm, fault: Fault, attempt: int) -> None:
    victim = pick(three, attempt, fault.__name__)
    with fault(three, victim, attempt):
        others_go_on(three, victim)
        mark = len(victim.rounds)
    three.until(lambda: contributes(three, victim, mark), "its part in a round", BOUND_S)
    assert victim.exit_code is None, victim.story()


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("attempt", range(TIMES - 1))
@pytest.mark.parametrize("trouble", [Trouble.CUT, Trouble.DEAD])
def test_a_wire_in_trouble(three: Swarm, wire: Wire, trouble: Trouble, attempt: int) -> None:
    """The other peers' rounds continue, and bob contributes again once the wire is sound."""
    bob = three.peers[1]
    three.until(lambda: all_in(three), "a round of all three", 2 * BOUND_S)
    assert wire.chunks > 0, "no peer uses this wire"
    wire.fall_into(trouble)
    try:
        others_go_on(three, bob)
    finally:
        wire.fall_into(Trouble.NONE)
    mark = len(bob.rounds)
    three.until(lambda: contributes(three, bob, mark), "its part again", 2 * BOUND_S)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("attempt", range(1 + TIMES // 5))
def test_two_parts_that_each_went_on_alone_become_one_again(three: Swarm, attempt: int) -> None:
    """First two are frozen, so that the third opens a branch; then the third, so that the two
    decide by themselves. Afterwards one of both stories is discarded, by all alike."""
    alone = pick(three, attempt, "fork")
    two = others(three, alone)
    try:
        for peer in two:
            peer.freeze(whole_family=attempt % 2 == 0)
        others_go_on(three, *two)
        alone.freeze(whole_family=attempt % 2 == 1)
        for peer in two:
            peer.thaw()
        others_go_on(three, alone, rounds=1)
    finally:
        for peer in three.peers:
            peer.thaw()
    theirs = {event["head"] for event in two[0].rounds}
    assert alone.rounds[-1]["head"] not in theirs, "nothing to bring together"
    marks = {peer.name: len(peer.rounds) for peer in three.peers}
    three.until(
        lambda: all(contributes(three, peer, marks[peer.name]) for peer in three.peers),
        "rounds of all three",
        BOUND_S,
    )


@pytest.mark.timeout(PATIENCE_S)
def test_all_end_on_one_chain(three: Swarm) -> None:
    families = [process for peer in three.peers for process in peer.family()]
    all_end_on_one_chain(three, RUN)
    assert psutil.wait_procs(families, timeout=5.0)[1] == []
    assert three.left_over() == []


# ---- what the tests wait for


def pick(swarm: Swarm, attempt: int, salt: str) -> Peer:
    """The next victim, at some moment of a round in which all took part. Founders included."""
    swarm.until(lambda: all_in(swarm), "a round of all three", BOUND_S)
    random_moment = random.Random(f"{salt} {attempt}").uniform(0.0, 0.5)
    moment = time.monotonic() + random_moment
    swarm.until(lambda: time.monotonic() >= moment, "the moment")
    return swarm.peers[(attempt + 1) % len(swarm.peers)]


def all_in(swarm: Swarm) -> bool:
    everybody = {peer.peer_id for peer in swarm.peers}
    return all(peer.rounds and set(peer.rounds[-1]["members"]) == everybody for peer in swarm.peers)


def others_go_on(swarm: Swarm, *victims: Peer, rounds: int = 2) -> None:
    """Wait until all peers but the victims have committed so many more rounds."""
    rest = [peer for peer in swarm.peers if peer not in victims]
    marks = {peer.name: peer.last_round + rounds for peer in rest}
    swarm.until(
        lambda: all(peer.last_round >= marks[peer.name] for peer in rest),
        f"rounds without {', '.join(victim.name for victim in victims)}",
        BOUND_S,
    )
