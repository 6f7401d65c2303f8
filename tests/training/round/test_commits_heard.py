"""Commits that reach a replica early, twice, or from a branch while a quorum's is on its way."""

import pytest
from scene import BATCH, GONE, HEAD, KEYS, MATE, NOBODY, STATE, THEM, Scene, decided, strangers

from atom.swarm.chain.commit import ChainRules, Commit, Head, genesis
from atom.swarm.chain.messages import CommitNotice
from atom.training.round import events
from atom.training.round.events import Phase
from atom.training.round.head_candidates import MOST_DONORS
from tests.swarm.chain_samples import a_commit

GENESIS = genesis(b"m" * 32, STATE, MATE, ChainRules(BATCH))


def chain(rounds: int) -> tuple[list[Commit], list[Head]]:
    """Return the commits of a founder that decided alone, and their heads."""
    commits, heads = list[Commit](), [GENESIS]
    for number in range(1, rounds + 1):
        commits.append(decided(heads[-1], bytes([number]) * 32, MATE))
        heads.append(heads[-1].after(commits[-1].value))
    return commits, heads


def hear(scene: Scene, commit: Commit) -> list[bytes]:
    """Return the results that it asks for once it hears of a commit."""
    acts = scene.hear(CommitNotice(commit))
    return [action.digest for action in acts if isinstance(action, events.FetchResult)]


def step(scene: Scene, commit: Commit) -> list[bytes]:
    """Deliver the result and take the step; return the results that it asks for next."""
    fetched = scene.tell(events.ResultFetched(commit.value.result_digest, in_memory=True))
    assert [action.commit for action in fetched if isinstance(action, events.Apply)] == [commit]
    acts = scene.tell(events.Stepped(scene.machine.head.digest, STATE))
    return [action.digest for action in acts if isinstance(action, events.FetchResult)]


def test_commits_said_while_catching_up_or_too_early_are_taken_up_in_their_turn() -> None:
    joiner, (commits, heads) = Scene(GENESIS, b""), chain(4)
    assert joiner.machine.phase is Phase.SYNCING
    for commit in commits[:3]:
        assert hear(joiner, commit) == []
    arrived = joiner.tell(events.CaughtUp(heads[1], STATE))
    wanted = [action.digest for action in arrived if isinstance(action, events.FetchResult)]
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
    parts = {THEM: BATCH} | {KEYS[peer]: 1 for peer in crowd}
    commit = a_commit(HEAD, parts, [THEM, NOBODY])
    scene.tick()
    [digest] = hear(scene, commit)
    [asked] = [
        act
        for act in scene.tell(events.ResultFetched(digest, in_memory=False))
        if isinstance(act, events.CatchUp)
    ]
    assert (asked.donors[0], len(asked.donors)) == (MATE.peer_id, MOST_DONORS)


# ---- a quorum's and a branch's


FIRST = decided(HEAD, b"1" * 32, MATE, GONE)
ALONE = decided(HEAD, b"2" * 32, GONE, survivors=(GONE,))


def followed(scene: Scene, *heard: Commit) -> Commit:
    """Let the machine hear these commits in order; return the commit that it steps to."""
    for commit in heard:
        hear(scene, commit)
    [fetch] = scene.done(events.FetchResult)
    [commit] = [each for each in heard if each.value.result_digest == fetch.digest]
    assert set(fetch.holders) == {MATE.peer_id, *(vote.voter.peer_id for vote in commit.votes)}
    step(scene, commit)
    assert scene.machine.head == HEAD.after(commit.value)
    return commit


@pytest.mark.parametrize("heard", [(FIRST, ALONE), (ALONE, FIRST)])
def test_a_quorums_round_is_not_left_for_a_branch(heard: tuple[Commit, ...]) -> None:
    """A peer that waits for the result in vain catches up, and may follow the branch
    then."""
    scene = Scene()
    scene.tick()
    assert followed(scene, *heard) == FIRST


def test_a_branch_of_one_former_member_is_not_followed_while_a_quorum_lives() -> None:
    """Each peer that once contributed could open a branch alone, at any time."""
    scene = Scene()
    scene.tick()
    assert hear(scene, ALONE) == []
    assert (scene.machine.head, scene.offences) == (HEAD, [])


def test_a_branch_of_most_voters_in_sight_is_followed_at_an_overdue_head() -> None:
    scene = Scene()
    scene.tick()
    scene.machine._context.state.overdue = 2.0
    assert hear(scene, ALONE) == [], "its one voter may be the reason why no round was decided"
    both = tuple(sorted((MATE, GONE)))
    pair = decided(HEAD, b"4" * 32, *both, survivors=both)
    assert followed(scene, pair) == pair
