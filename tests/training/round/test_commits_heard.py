"""Commits that reach a replica early, twice, or from a branch while a quorum's is on its way."""

from dataclasses import replace

import pytest
from scene import GONE, HEAD, MATE, STATE, Scene, certified, decided, strangers

from atom.swarm.chain.commit import Commit, Head, MemberCount, genesis
from atom.swarm.chain.messages import CommitNotice
from atom.training.round.events import (
    Apply,
    CatchUp,
    CaughtUp,
    FetchResult,
    Phase,
    ResultFetched,
    Stepped,
)
from atom.training.round.faults import MOST_DONORS

GENESIS = genesis(b"m" * 32, STATE, MATE)


def chain(rounds: int) -> tuple[list[Commit], list[Head]]:
    """What the founder decided alone."""
    commits, heads = list[Commit](), [GENESIS]
    for number in range(1, rounds + 1):
        commits.append(decided(heads[-1], bytes([number]) * 32, MATE))
        heads.append(heads[-1].after(commits[-1].value))
    return commits, heads


def hear(scene: Scene, commit: Commit) -> list[bytes]:
    """The results it asks for, told of that commit."""
    acts = scene.hear(CommitNotice(commit))
    return [action.digest for action in acts if isinstance(action, FetchResult)]


def step(scene: Scene, commit: Commit) -> list[bytes]:
    """Its result arrives, the step is taken; what it asks for next."""
    fetched = scene.tell(ResultFetched(commit.value.result_digest, is_here=True))
    assert [action.commit for action in fetched if isinstance(action, Apply)] == [commit]
    acts = scene.tell(Stepped(scene.machine.head.digest, STATE))
    return [action.digest for action in acts if isinstance(action, FetchResult)]


def test_commits_said_while_catching_up_or_too_early_are_taken_up_in_their_turn() -> None:
    joiner, (commits, heads) = Scene(GENESIS, b""), chain(4)
    assert joiner.machine.phase is Phase.SYNCING
    for commit in commits[:3]:
        assert hear(joiner, commit) == []
    arrived = joiner.tell(CaughtUp(heads[1], STATE))
    wanted = [action.digest for action in arrived if isinstance(action, FetchResult)]
    assert wanted == [commits[1].value.result_digest]
    assert hear(joiner, commits[3]) == []
    assert step(joiner, commits[1]) == [commits[2].value.result_digest]
    assert step(joiner, commits[2]) == [commits[3].value.result_digest]
    assert step(joiner, commits[3]) == []
    assert (joiner.machine.head, joiner.machine.phase) == (heads[4], Phase.ACCUMULATING)


def test_what_is_heard_ahead_is_bounded_and_the_past_forgotten() -> None:
    joiner, (commits, heads) = Scene(GENESIS), chain(40)
    for commit in commits[1:]:
        assert hear(joiner, commit) == []
    assert hear(joiner, commits[0]) == [commits[0].value.result_digest]
    assert step(joiner, commits[0]) == [], "the second was pushed out by later ones"
    assert joiner.machine.head == heads[1]


def test_when_a_result_is_nowhere_few_of_its_members_are_asked_those_in_sight_first() -> None:
    scene, crowd = Scene(), strangers(100)
    parts = tuple(MemberCount(peer, v.incarnation, 1, 1.0) for peer, v in crowd.items())
    commit = certified(
        replace(FIRST.value, contributions=(*parts, *FIRST.value.contributions)), MATE, GONE
    )
    scene.tick()
    [digest] = hear(scene, commit)
    [asked] = [
        act for act in scene.tell(ResultFetched(digest, is_here=False)) if isinstance(act, CatchUp)
    ]
    assert (asked.donors[0], len(asked.donors)) == (MATE.peer_id, MOST_DONORS)


# ---- a quorum's and a branch's


FIRST = decided(HEAD, b"1" * 32, MATE, GONE)
ALONE = decided(HEAD, b"2" * 32, GONE, survivors=(GONE,))


@pytest.mark.parametrize(("heard", "followed"), [((FIRST, ALONE), FIRST), ((ALONE,), ALONE)])
def test_a_quorums_round_whose_result_is_on_its_way_is_not_left_for_a_branch(
    heard: tuple[Commit, ...], followed: Commit
) -> None:
    """However long it has been waited for: who waits in vain catches up, and may follow then."""
    scene = Scene()
    for commit in heard:
        hear(scene, commit)
    vouchers = {vote.voter.peer_id for vote in heard[0].votes}
    assert set(scene.done(FetchResult)[0].holders) == {MATE.peer_id} | vouchers
    step(scene, followed)
    assert scene.machine.head == HEAD.after(followed.value)
