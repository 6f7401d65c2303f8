"""A peer on its way to a fast swarm: commits are said once, usually before it stands below them."""

from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    Voter,
    genesis,
    vote_payload,
)
from atom.swarm.chain.membership import signed_by
from atom.swarm.chain.messages import CommitNotice
from atom.swarm.identity import Identity
from atom.training.round import RoundMachine, Terms
from atom.training.round.batch_policy import GlobalBatch
from atom.training.round.events import (
    Apply,
    CaughtUp,
    Fetched,
    FetchResult,
    Phase,
    Received,
    Stepped,
)

FOUNDER, JOINER = Identity.create(), Identity.create()
VOTER = Voter(FOUNDER.peer_id, b"f" * 16)
ME = Voter(JOINER.peer_id, b"j" * 16)
GENESIS = genesis(b"m" * 32, b"s" * 32, VOTER)


def chain(rounds: int) -> tuple[list[Commit], list[Head]]:
    """What the founder decided alone."""
    commits: list[Commit] = []
    heads = [GENESIS]
    for number in range(1, rounds + 1):
        ballot = Ballot(1, VOTER.peer_id, VOTER.incarnation)
        value = Value(
            parent=heads[-1].digest,
            round=number,
            origin=ballot,
            result_digest=bytes([number]) * 32,
            gradient_norm=1.0,
            parent_state_digest=b"d" * 32,
            contributions=(Contribution(VOTER.peer_id, VOTER.incarnation, 8, 3.0),),
            voters_next=(VOTER,),
        )
        payload = vote_payload(value.parent, ballot, value.digest())
        signature = FOUNDER.sign(VOTE_DOMAIN, signed_by(VOTER, payload))
        commits.append(Commit(value, ballot, (Vote(VOTER, signature),)))
        heads.append(heads[-1].after(value))
    return commits, heads


def machine(state_digest: bytes) -> RoundMachine:
    return RoundMachine(ME, GENESIS, state_digest, Terms(GlobalBatch(8)), JOINER.sign, 0.0)


def hear(joiner: RoundMachine, commit: Commit) -> list[bytes]:
    """The results it asks for, told of that commit."""
    told = joiner.handle(Received(VOTER.peer_id, VOTER.incarnation, CommitNotice(commit)), 1.0)
    return [action.digest for action in told if isinstance(action, FetchResult)]


def step(joiner: RoundMachine, commit: Commit) -> list[bytes]:
    """Its result arrives, the step is taken; what it asks for next."""
    fetched = joiner.handle(Fetched(commit.value.result_digest), 1.0)
    applied = [action for action in fetched if isinstance(action, Apply)]
    assert [action.commit for action in applied] == [commit]
    then = joiner.handle(Stepped(joiner.head.digest, b"t" * 32), 1.0)
    return [action.digest for action in then if isinstance(action, FetchResult)]


def test_commits_that_came_too_early_are_taken_up_in_their_turn() -> None:
    joiner = machine(b"s" * 32)
    commits, heads = chain(3)
    assert hear(joiner, commits[2]) == []
    assert hear(joiner, commits[1]) == []
    assert hear(joiner, commits[0]) == [commits[0].value.result_digest]
    assert step(joiner, commits[0]) == [commits[1].value.result_digest]
    assert step(joiner, commits[1]) == [commits[2].value.result_digest]
    assert step(joiner, commits[2]) == []
    assert joiner.head == heads[3]
    assert joiner.phase is Phase.ACCUMULATING


def test_a_commit_said_while_catching_up_continues_from_there() -> None:
    joiner = machine(b"")
    commits, heads = chain(4)
    assert joiner.phase is Phase.SYNCING
    for commit in commits:
        assert hear(joiner, commit) == []
    arrived = joiner.handle(CaughtUp(heads[2], b"t" * 32), 1.0)
    wanted = [action.digest for action in arrived if isinstance(action, FetchResult)]
    assert wanted == [commits[2].value.result_digest]
    assert step(joiner, commits[2]) == [commits[3].value.result_digest]
    assert step(joiner, commits[3]) == []
    assert joiner.head == heads[4]


def test_what_is_heard_ahead_is_bounded_and_the_past_forgotten() -> None:
    joiner = machine(b"s" * 32)
    commits, heads = chain(40)
    for commit in commits[1:]:
        assert hear(joiner, commit) == []
    assert hear(joiner, commits[0]) == [commits[0].value.result_digest]
    assert step(joiner, commits[0]) == [], "the second was pushed out by later ones"
    assert joiner.head == heads[1]
