"""Kill, freeze and restart real daemons during rounds: no divergence, no stuck swarm, no orphan.

Twice each here. The long form is the same tests under `ATOM_CHAOS_TIMES=32 ATOM_CHAOS_FREEZE_S=10`
(see the Makefile).
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from damaged_disks import DAMAGES
from swarm_history import check_peers, digests_by_head
from swarm_of_processes import START_S, Peer, Swarm, endless, gather, swarm_in
from tight_memory import tightest_memory

from atom.base.errors import DeviceError
from atom.cli.look.certified_ledger import read_ledger
from atom.config.hours import DAYS
from atom.daemon.doctor.examination import DoctorRequest, examine
from atom.daemon.doctor.finding import Level
from atom.daemon.doctor.findings import findings_of
from atom.daemon.doctor.swarm_side import NOT_A_PEER

TIMES = int(os.environ.get("ATOM_CHAOS_TIMES", "2"))
FREEZE_S = float(os.environ.get("ATOM_CHAOS_FREEZE_S", "3"))
BOUND_S = 30.0
"""Within this the others commit again, and whoever came back contributes again."""
GRACE_S = 2.0
PATIENCE_S = TIMES * (FREEZE_S + 2 * START_S)
RUN = "faults"
SMALL_BOX = """[device]
kind = "cpu"
[host]
memory = "1 GiB"
[network]
listen = "127.0.0.1:0"
"""
"""Too small for any model of the GPT-3 paper: none has to be traced."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    names = ("ada", "bob", "cyd")
    with swarm_in(tmp_path_factory.mktemp("of"), endless(RUN, GRACE_S, 10), names) as swarm:
        with (swarm.root / "cyd.toml").open("a", encoding="utf-8") as file:
            file.write('reachable = "no"\n')  # one takes part by dialling out, whatever happens
        swarm.found()
        gather([swarm])
        swarm.resume()
        yield swarm


@pytest.mark.timeout(PATIENCE_S)
def test_who_only_looks_sees_what_everybody_gave_and_whether_its_own_box_fits(
    three: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything goes wrong: later, events tell of rounds that were discarded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, ledger = asyncio.run(read_ledger(three.address, None))
    last = ledger.head.round
    three.until(lambda: three.founder.last_round >= last, "the founder's word of it")
    given = Counter[str]()
    for event in three.founder.rounds:
        if event["round"] <= last:
            given.update(dict(zip(event["members"], event["contributed"], strict=True)))
    assert {peer: share.sequences for peer, share in ledger.by_share()} == +given

    (tmp_path / "box.toml").write_text(SMALL_BOX, encoding="utf-8")
    looked: list[str] = []
    asked = DoctorRequest(three.address, tmp_path / "box.toml", tmp_path / "state")
    found = {each.topic: each for each in findings_of(examine(asked, looked.append))}
    assert found["Swarm"].said == f"{RUN} is reached, 3 peers are alive"
    assert {"Processor", "Host memory", "Optimizer", "Disk", "Port of listen"} <= found.keys()
    for topic in ("Clock", "Versions", "Its data", "This run"):
        assert found[topic].level is Level.OK, found[topic]
    assert found["From outside"].said == NOT_A_PEER
    assert found["Largest model"].level is Level.WARNING, "none of the paper's"
    assert not (tmp_path / "state").exists()


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("attempt", range(TIMES))
def test_killed_during_a_round(three: Swarm, attempt: int) -> None:
    victim = pick(three, attempt, "kill")
    orphans = victim.kill()
    assert orphans == [], "SIGKILL left processes behind"
    went_on = others_go_on(three, victim)
    back = comes_back(three, victim)
    report(three, "killed", victim, went_on, back)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("attempt", range(TIMES))
def test_frozen_during_a_round(three: Swarm, attempt: int) -> None:
    victim = pick(three, attempt, "freeze")
    ends_at = time.monotonic() + FREEZE_S
    victim.freeze(whole_family=attempt % 2 == 0)
    try:
        went_on = others_go_on(three, victim)
        three.until(lambda: time.monotonic() >= ends_at, "the end of the freeze", FREEZE_S + 1)
    finally:
        victim.thaw()
    mark = len(victim.rounds)
    back = three.until(lambda: contributes(three, victim, mark), "the thawed one's part", BOUND_S)
    assert victim.exit_code is None
    report(three, "frozen", victim, went_on, back)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("attempt", range(TIMES))
def test_restarted_with_damaged_files(three: Swarm, attempt: int) -> None:
    """It leaves cleanly; then what it finds on its disk is not what it wrote."""
    victim = pick(three, attempt, "restart")
    family = victim.family()
    victim.control.leave(60.0)
    assert victim.wait() == 0, victim.story()
    assert victim.events("left")[-1]["ending"] == "left"
    assert psutil.wait_procs(family, timeout=5.0)[1] == []
    DAMAGES[attempt % len(DAMAGES)](victim.state)
    went_on = others_go_on(three, victim)
    back = comes_back(three, victim)
    report(three, "restarted", victim, went_on, back)


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
        branched = others_go_on(three, *two)
        alone.freeze(whole_family=attempt % 2 == 1)
        for peer in two:
            peer.thaw()
        quorum = others_go_on(three, alone, rounds=1)
    finally:
        for peer in three.peers:
            peer.thaw()
    theirs = {event["head"] for event in two[0].rounds}
    assert alone.rounds[-1]["head"] not in theirs, "nothing to bring together"
    marks = {peer.name: len(peer.rounds) for peer in three.peers}
    healed = three.until(
        lambda: all(contributes(three, peer, marks[peer.name]) for peer in three.peers),
        "rounds of all three",
        BOUND_S,
    )
    report(three, f"branch after {branched:.1f} s; then frozen", alone, quorum, healed)


@pytest.mark.timeout(PATIENCE_S)
def test_paused_and_resumed(three: Swarm) -> None:
    victim = pick(three, 1, "pause")
    victim.control.pause()
    three.until(lambda: victim.control.info()["state"] == "paused", "the pause")
    mark, witness = len(victim.rounds) + 1, others(three, victim)[0]
    three.until(lambda: len(victim.rounds) > mark + 2, "rounds that a paused peer follows")
    assert not any(contribution(event, victim.peer_id) for event in victim.rounds[mark:])
    victim.control.resume()
    mark = len(victim.rounds)
    three.until(lambda: contributes(three, victim, mark), "its part after the pause", BOUND_S)
    assert witness.exit_code is None


@pytest.mark.timeout(PATIENCE_S)
def test_hours_and_memory_that_are_set_while_it_runs(three: Swarm) -> None:
    """What was counted before is in the next round, to the last sequence. The model is cut anew
    once while it trains, and once between what it counted and the round."""
    victim = pick(three, 2, "set")
    tight = f"device.memory={tightest_memory(endless(RUN, GRACE_S, 10))} B"
    cut = victim.state / "program" / "sub_models.py"
    assert victim.control.set(["device.memory=1 GiB"])[0]["live"]
    roomy = cut.read_text(encoding="utf-8")
    with pytest.raises(DeviceError, match=r"of host memory, here 62\.5 KiB may be used"):
        victim.control.set(["host.memory=64 kB"])
    two_days_ago = DAYS[(datetime.now().weekday() - 2) % 7]
    hours = f'schedule.hours=["{two_days_ago} 00:00-00:01"]'
    said = victim.control.set([hours, "network.upload=8 Gbit/s", "network.listen=127.0.0.1:0"])
    assert [each["live"] for each in said] == [True, True, False]
    info = three_times_the_same(three, victim)
    assert victim.control.set([tight])[0]["live"]
    assert cut.read_text(encoding="utf-8") != roomy
    assert info["paused"].startswith("outside its hours, until ")
    assert info["state"] in ("paused", "reducing", "stepping")
    three.until(lambda: victim.last_round > info["round"] + 2, "rounds that it follows")
    told = {event["round"]: contribution(event, victim.peer_id) for event in victim.rounds}
    assert told[info["round"] + 1] == info["mini_batches"]
    assert told[info["round"] + 2] == 0
    text = (three.root / f"{victim.name}.toml").read_text(encoding="utf-8")
    assert 'upload = "8 Gbit/s"' in text
    assert text.startswith('[device]\nkind = "cpu"\nmemory'), "the rest is as it was"
    assert "64 kB" not in text, "what was refused is not there"
    victim.control.set(["schedule.hours="])
    mark = len(victim.rounds)
    three.until(lambda: contributes(three, victim, mark), "its part within its hours", BOUND_S)
    assert victim.control.info()["paused"] is None


@pytest.mark.timeout(PATIENCE_S)
def test_all_end_on_one_chain(three: Swarm) -> None:
    for peer in three.peers:
        peer.control.pause()
    three.until(lambda: at_one_head(three), "everybody at one head", BOUND_S)
    families = [process for peer in three.peers for process in peer.family()]
    for peer in three.peers:
        peer.control.leave(60.0)
        assert peer.wait(BOUND_S) == 0, three.story()
    discarded = check_peers(three.peers, RUN)
    say(f"{three.founder.last_round} rounds, {discarded} reports of discarded ones")
    assert psutil.wait_procs(families, timeout=5.0)[1] == []
    assert three.left_over() == []


def three_times_the_same(swarm: Swarm, peer: Peer) -> dict[str, Any]:
    """Its information while no round begins: round and count belong together."""
    seen: list[dict[str, Any]] = []

    def same() -> bool:
        seen.append(peer.control.info())
        latest = {(each["round"], each["mini_batches"]) for each in seen[-3:]}
        return len(seen) > 2 and len(latest) == 1

    swarm.until(same, "a round that lasts")
    return seen[-1]


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


def others(swarm: Swarm, victim: Peer) -> list[Peer]:
    return [peer for peer in swarm.peers if peer is not victim]


def others_go_on(swarm: Swarm, *victims: Peer, rounds: int = 2) -> float:
    """Seconds until all but the victims committed so many more rounds."""
    rest = [peer for peer in swarm.peers if peer not in victims]
    marks = {peer.name: peer.last_round + rounds for peer in rest}
    return swarm.until(
        lambda: all(peer.last_round >= marks[peer.name] for peer in rest),
        f"rounds without {', '.join(victim.name for victim in victims)}",
        BOUND_S,
    )


def comes_back(swarm: Swarm, victim: Peer) -> float:
    """Starts it again; seconds from there to its part in a round, its own loading time apart."""
    lives, mark = victim.lives, len(victim.rounds)
    victim.start()
    swarm.until(lambda: victim.lives > lives or victim.exit_code, "its new life", START_S)
    assert victim.exit_code is None, victim.story()
    return swarm.until(lambda: contributes(swarm, victim, mark), "its part in a round", BOUND_S)


def contributes(swarm: Swarm, victim: Peer, mark: int) -> bool:
    """Whether it had a part in a round that the others committed too, after its first `mark`."""
    heads = {event["head"] for peer in others(swarm, victim) for event in peer.rounds[-50:]}
    news = victim.rounds[mark:]
    return any(contribution(e, victim.peer_id) and e["head"] in heads for e in news)


def contribution(event: dict[str, list[object]], peer_id: str) -> object:
    return dict(zip(event["members"], event["contributed"], strict=True)).get(peer_id, 0)


def at_one_head(swarm: Swarm) -> bool:
    infos = [peer.control.info() for peer in swarm.peers]
    standing = all(info["state"] == "paused" for info in infos)
    return standing and len({(info["round"], info["digest"]) for info in infos}) == 1


def report(swarm: Swarm, what: str, victim: Peer, went_on: float, back: float) -> None:
    """No divergence so far; the figures for whoever looks at the output."""
    digests_by_head([peer.events() for peer in swarm.peers])
    branches = len({e["head"] for peer in swarm.peers for e in peer.rounds if e["branch"]})
    say(
        f"{what} {victim.name} at round {victim.last_round}: the others' rounds after "
        f"{went_on:.1f} s, its own part after {back:.1f} s; branches so far: {branches}"
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
