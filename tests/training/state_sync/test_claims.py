"""Claims of a better head: looked into a few at a time, and again if they are not proven."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Head, Voter
from atom.training.round.events import View
from atom.training.round.faults import FIRST_DOUBT_S, LONGEST_DOUBT_S
from atom.training.state_sync.donors import AT_ONCE, SETTLED_S, ClaimCheck
from tests.manual_clock import ManualClock
from tests.swarm.swarm_samples import a_lease

HEAD = Head(b"h" * 32, 4, 96, 96, (Voter("voter", b"i" * 16),), ("voter",))


class Scene:
    """What a donor answers, and how long it takes, is the test's to say."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.honest: set[str] = set()
        self.proven: set[str] = set()
        self.asked: list[str] = []
        self.costs_s = 0.0
        self.answer = threading.Event()
        self.answer.set()
        self.claims = ClaimCheck(self.prove, self.has_proven, self.clock)
        self.leases = {}

    def has_proven(self, peer: str) -> bool:
        return peer in self.proven

    def prove(self, peer: str) -> bool:
        self.asked.append(peer)
        assert self.answer.wait(20.0)
        self.clock.advance(self.costs_s)
        if peer not in self.honest:
            raise PeerRefused(Reason.BAD_CERTIFICATE)
        self.proven.add(peer)
        return True

    def claim(self, *peers: str) -> None:
        for peer in peers:
            self.leases[peer] = a_lease(peer, head=b"x" * 32, round=10**9)

    def tick(self, seconds: float = 0.1, aside: frozenset[str] = frozenset()) -> frozenset[str]:
        """A moment later, when everybody that may answer has."""
        self.clock.advance(seconds)
        unproven = self.claims.unproven(View(self.leases, aside=aside), HEAD)
        for thread in threading.enumerate():
            if thread.name == "claim" and self.answer.is_set():
                thread.join(20.0)
        return unproven


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.answer.set()
    scene.tick()


def test_a_claim_is_good_once_its_chain_was_shown(scene: Scene) -> None:
    scene.honest = {"a"}
    scene.claim("a")
    scene.leases["mate"] = replace(a_lease("mate"), head=HEAD.digest, round=HEAD.round)
    assert scene.tick() == {"a"}
    assert scene.asked == [], "the commit may be under way to us"
    scene.tick(SETTLED_S)
    assert scene.tick() == frozenset()
    for _ in range(10):
        scene.tick(10.0)
    assert scene.asked == ["a"]
    scene.proven.clear()  # our head is another one now
    assert scene.tick() == {"a"}


def test_of_a_crowd_few_are_asked_at_once_and_those_we_know_first(scene: Scene) -> None:
    scene.claim(*(f"stranger {number}" for number in range(40)), "voter")
    scene.answer.clear()
    for _ in range(20):
        assert len(scene.tick()) == 41
    assert len(scene.asked) == AT_ONCE
    assert scene.asked[0] == "voter"


def test_a_crowd_hides_nobody(scene: Scene) -> None:
    scene.honest = {"honest"}
    scene.claim(*(f"liar {number}" for number in range(40)), "honest")
    for _ in range(60):
        scene.tick()
    assert "honest" in scene.proven


def test_who_proves_nothing_is_asked_again_soon_however_long_it_took(scene: Scene) -> None:
    """It may have been cut off, or be slow: what it showed until then is kept."""
    scene.claim("slow", "aside")
    scene.costs_s = 60.0
    began = scene.clock.now()
    while scene.clock.now() < began + 1000.0:
        scene.tick(1.0, aside=frozenset({"aside"}))
    assert set(scene.asked) == {"slow"}, "nobody asks who is in quarantine"
    in_all_s = scene.costs_s + LONGEST_DOUBT_S
    assert 1000 / (in_all_s + 2) <= len(scene.asked) <= 1000 / (scene.costs_s + FIRST_DOUBT_S) + 1
