"""Two commits of one round reach a replica: whoever signed both at one ballot is put aside."""

from dataclasses import replace

from atom.base.reasons import Reason
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    Contribution,
    Head,
    Value,
    Vote,
    Voter,
    vote_payload,
)
from atom.swarm.chain.membership import signed_by
from atom.swarm.chain.messages import CommitNotice
from atom.swarm.identity import Identity
from atom.training.round import RoundMachine, Terms
from atom.training.round.batch_policy import GlobalBatch
from atom.training.round.events import Apply, Fetched, Offence, Received
from atom.training.round.round_state import RoundContext, RoundState
from atom.training.round.validation import commit_problem

KEYS = [Identity.create() for _ in range(3)]
ME, HONEST, LIAR = VOTERS = [Voter(key.peer_id, key.peer_id.encode()[-16:]) for key in KEYS]
HEAD = Head(b"h" * 32, 4, 96, 96, tuple(sorted(VOTERS)), ())
BALLOT = Ballot(1, LIAR.peer_id, LIAR.incarnation)


def commit(result: bytes, *signers: Voter, ballot: Ballot = BALLOT) -> Commit:
    parts = (Contribution(LIAR.peer_id, LIAR.incarnation, 96, 1.0),)
    value = Value(HEAD.digest, 5, ballot, result, 1.0, b"s" * 32, parts, HEAD.voters)
    payload = vote_payload(HEAD.digest, ballot, value.digest())
    votes = tuple(
        Vote(voter, KEYS[VOTERS.index(voter)].sign(VOTE_DOMAIN, signed_by(voter, payload)))
        for voter in signers
    )
    return Commit(value, ballot, votes)


FIRST = commit(b"1" * 32, HONEST, LIAR)
SECOND = commit(b"2" * 32, ME, LIAR)


class Scene:
    def __init__(self) -> None:
        self.machine = RoundMachine(ME, HEAD, b"s" * 32, Terms(GlobalBatch(96)), KEYS[0].sign, 0.0)
        self.offences: list[tuple[str, Reason]] = []

    def hear(self, said: Commit) -> None:
        self._tell(Received(LIAR.peer_id, LIAR.incarnation, CommitNotice(said)))

    def overdue(self, times: float) -> None:
        """So often over, this head should have been decided."""
        self.machine._context.state.overdue = times

    def step(self, commit: Commit = FIRST) -> None:
        actions = self._tell(Fetched(commit.value.result_digest))
        assert any(isinstance(action, Apply) for action in actions)

    def _tell(self, event: Received | Fetched) -> list[object]:
        actions = self.machine.handle(event, 1.0)
        self.offences += [(a.peer_id, a.reason) for a in actions if isinstance(a, Offence)]
        return list(actions)


def test_of_branches_that_are_refused_nothing_is_kept() -> None:
    """A voter alone signs as many as it likes: each of another process of its own."""
    context = RoundContext(
        ME, Terms(GlobalBatch(96)), KEYS[0].sign, RoundState(HEAD, b"s" * 32, 0.0)
    )
    for number in range(50):
        alone = Voter(LIAR.peer_id, number.to_bytes(16))
        assert commit_problem(context, branch(alone)) is Reason.VOTER_ALIVE
    assert context.state.acceptor.by_survivors == {}


def branch(alone: Voter) -> Commit:
    value = replace(SECOND.value, voters_next=(alone,), survivors=(alone,))
    payload = vote_payload(HEAD.digest, BALLOT, value.digest(), value.survivors)
    signature = KEYS[VOTERS.index(LIAR)].sign(VOTE_DOMAIN, signed_by(alone, payload))
    return Commit(value, BALLOT, (Vote(alone, signature),))


def test_a_quorums_round_whose_result_is_on_its_way_is_not_left_for_a_branch() -> None:
    """However long it has been waited for: who waits in vain catches up, and may follow then."""
    scene, alone = Scene(), branch(LIAR)
    scene.hear(FIRST)
    scene.overdue(3.0)
    scene.hear(alone)
    scene.step()
    assert scene.machine.head == HEAD.after(FIRST.value)


def test_who_knows_of_no_quorums_round_follows_the_branch() -> None:
    scene, alone = Scene(), branch(LIAR)
    scene.overdue(3.0)
    scene.hear(alone)
    scene.step(alone)
    assert scene.machine.head == HEAD.after(alone.value)
