"""One voter that lies: it leads an attempt, collects honest promises, and proposes a lie.

The machines are real. The liar holds a true key and vote, and the honest voters' signed promises.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from atom.base.errors import Reason
from atom.swarm.chain.commit import (
    Ballot,
    ChainRules,
    Commit,
    Head,
    MemberCount,
    Value,
    Voter,
)
from atom.swarm.chain.messages import (
    Accept,
    AcceptedVote,
    CommitNotice,
    Message,
    Nack,
    Prepare,
    Promise,
    Ring,
)
from atom.swarm.chain.succession import Evidence, next_voters
from atom.swarm.chain.tenure import from_the_start
from atom.swarm.identity import Identity
from atom.training.round.events import (
    Action,
    Apply,
    ExchangeFinished,
    Freeze,
    Frozen,
    Offence,
    Received,
    ResultFetched,
    Send,
    StartExchange,
)
from atom.training.round.machine import RoundMachine
from atom.training.round.round_state import RoundTerms
from tests.swarm.chain_samples import vote, vouch

BATCH, GIVEN, STATE, RESULT, NORM = 64, 16, b"s" * 32, b"r" * 32, 1.0
KEYS = sorted((Identity.create() for _ in range(5)), key=lambda key: key.peer_id)
VOTERS = tuple(Voter(key.peer_id, bytes([n]) * 16) for n, key in enumerate(KEYS))
LIAR, LIARS_KEY = VOTERS[2], KEYS[2]
HONEST = [voter for voter in VOTERS if voter != LIAR]
KEY_OF = dict(zip(VOTERS, KEYS, strict=True))
HEAD = Head(
    b"h" * 32, 7, 0, 0, VOTERS, tuple(v.peer_id for v in VOTERS),
    tenures=from_the_start(v.peer_id for v in VOTERS),
    rules=ChainRules(BATCH, last_round=1000),
)  # fmt: skip
BALLOT = Ballot(1, LIAR.peer_id, LIAR.incarnation)


def honest_machines() -> dict[Voter, RoundMachine]:
    terms = RoundTerms(BATCH, last_round=1000)
    return {v: RoundMachine(v, HEAD, STATE, terms, KEY_OF[v].sign, 0.0) for v in HONEST}


def hears(machine: RoundMachine, message: Message, now: float = 1.0) -> list[Action]:
    """Give the machine a message of the liar, freeze what it offers, and return its actions."""
    actions = machine.handle(Received(LIAR.peer_id, LIAR.incarnation, message), now)
    for action in list(actions):
        if isinstance(action, Freeze):
            actions += machine.handle(Frozen(action.ballot, GIVEN, 32.0), now)
    return actions


def sent(actions: list[Action], kind: type[Any]) -> list[Any]:
    messages = [action.message for action in actions if isinstance(action, Send)]
    return [message for message in messages if isinstance(message, kind)]


@dataclass
class Attempt:
    """Attempt of the liar after all honest voters have promised."""

    machines: dict[Voter, RoundMachine]
    promises: dict[Voter, Promise]

    @classmethod
    def called(cls) -> "Attempt":
        machines, promises = honest_machines(), {}
        for voter, machine in machines.items():
            (promises[voter],) = sent(hears(machine, Prepare(HEAD.digest, BALLOT)), Promise)
        return cls(machines, promises)

    def members(self) -> tuple[MemberCount, ...]:
        return tuple(
            MemberCount(v.peer_id, v.incarnation, p.sequences, p.loss_sum)
            for v, p in self.promises.items()
        )

    def value(self, **changes: Any) -> Value:
        """Return the value that an honest coordinator would propose, with these changes."""
        members = self.members()
        value = Value(
            HEAD.digest, 8, BALLOT, RESULT, NORM, STATE, members,
            next_voters(HEAD, (), members, set(), set(), LIAR.peer_id),
        )  # fmt: skip
        return replace(value, **changes)

    def evidence(self, value: Value) -> Evidence:
        """Return all signatures that the liar has: true promises, and its own under the value."""
        promises = {v.peer_id: p.signature for v, p in self.promises.items()}
        return Evidence(
            tuple(promises.get(m.peer_id, b"x" * 64) for m in value.contributions),
            vouched=(vouch(LIARS_KEY, value, BALLOT, LIAR),),
        )


def by_all(attempt: "Attempt", value: Value, ballot: Ballot = BALLOT) -> Evidence:
    """Return the evidence for a value that all voters vouch for."""
    vouched = tuple(vouch(KEY_OF[voter], value, ballot, voter) for voter in VOTERS)
    return replace(attempt.evidence(value), vouched=vouched)


LIES: Mapping[str, tuple[Reason, Callable[[Attempt], Value]]] = {
    "bytes that no exchange made": (Reason.DIGEST_MISMATCH, lambda a: a.value()),
    "only itself contributed, and only it votes next": (
        Reason.BAD_SIGNATURE,
        lambda a: a.value(
            contributions=(MemberCount(LIAR.peer_id, LIAR.incarnation, BATCH, 1.0),),
            voters_next=(LIAR,),
        ),
    ),
    "no contributions": (Reason.BAD_WEIGHT, lambda a: a.value(contributions=())),
    "a norm that switches clipping off": (
        Reason.DIGEST_MISMATCH,
        lambda a: a.value(gradient_norm=1e-30),
    ),
    "the run has finished": (Reason.WRONG_HEAD, lambda a: a.value(round=1000)),
    "no voters next": (Reason.NOT_A_VOTER, lambda a: a.value(voters_next=())),
    "counts that were never promised": (
        Reason.BAD_SIGNATURE,
        lambda a: a.value(contributions=tuple(replace(m, sequences=1000) for m in a.members())),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_no_honest_voter_signs_a_lie_or_applies_one_that_only_the_liar_signed(lie: str) -> None:
    attempt, (reason, lying) = Attempt.called(), LIES[lie]
    value = lying(attempt)
    signed = vote(LIARS_KEY, value, BALLOT, voter=LIAR)
    refusals = set()
    for machine in attempt.machines.values():
        proposal = Accept(HEAD.digest, BALLOT, value, attempt.evidence(value), BALLOT)
        actions = hears(machine, proposal)
        actions += machine.handle(ResultFetched(RESULT, True, value.gradient_norm), 1.1)
        assert sent(actions, AcceptedVote) == []
        refusals |= {nack.reason for nack in sent(actions, Nack)}
        actions = hears(machine, CommitNotice(Commit(value, BALLOT, (signed,))))
        assert [each.peer_id for each in actions if isinstance(each, Offence)] == [LIAR.peer_id]
        assert not any(isinstance(each, Apply) for each in actions)
        assert machine.head == HEAD
    assert refusals == {reason}


def test_a_commit_without_contributions_is_refused_although_a_quorum_signed_it() -> None:
    """Live commits follow the same rules as catch-up: the journal never rejects its own chain."""
    value = Attempt.called().value(contributions=())
    votes = [vote(KEY_OF[voter], value, BALLOT, voter=voter) for voter in VOTERS]
    for machine in honest_machines().values():
        actions = hears(machine, CommitNotice(Commit(value, BALLOT, tuple(votes))))
        assert [each.reason for each in actions if isinstance(each, Offence)] == [Reason.BAD_WEIGHT]


def test_a_branch_that_a_former_member_opens_alone_is_not_followed_while_voters_live() -> None:
    attempt = Attempt.called()
    mine = (MemberCount(LIAR.peer_id, LIAR.incarnation, BATCH, 1.0),)
    value = attempt.value(contributions=mine, survivors=(LIAR,), voters_next=(LIAR,))
    signed = vote(LIARS_KEY, value, BALLOT, voter=LIAR)
    for machine in attempt.machines.values():
        assert hears(machine, CommitNotice(Commit(value, BALLOT, (signed,)))) == []
        assert machine.head == HEAD


def test_a_leader_that_calls_in_vain_is_ignored_for_longer_each_time() -> None:
    (machine, *_), heard, now = honest_machines().values(), list[float](), 0.0
    for number in range(1, 200):
        now += 0.25
        ballot = replace(BALLOT, attempt=number)
        actions = hears(machine, Prepare(HEAD.digest, ballot), now)
        if sent(actions, Promise):
            heard.append(now)
        else:
            assert [nack.reason for nack in sent(actions, Nack)] == [Reason.BUSY]
    gaps = [after - before for before, after in itertools.pairwise(heard)]
    assert gaps[:5] == [0.25, 0.5, 1.0, 2.0, 4.0]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 12.0


def test_no_attempt_number_is_so_high_that_no_other_voter_can_lead() -> None:
    """A leap is refused, and followed part of the way, so that honest peers meet again."""
    (machine, *_), now = honest_machines().values(), 0.0
    for number in (2**63 - 1, 2**63 - 2, 2**40):
        now += 10.0
        actions = hears(machine, Prepare(HEAD.digest, replace(BALLOT, attempt=number)), now)
        assert [nack.reason for nack in sent(actions, Nack)] == [Reason.BALLOT_TOO_LOW]
    near = replace(BALLOT, attempt=4 * 2**20)
    assert sent(hears(machine, Prepare(HEAD.digest, near), now + 10.0), Promise)


def test_a_voter_that_reported_an_accepted_value_enters_no_new_exchange() -> None:
    """A coordinator that ignores the report could replace a round that was decided."""
    machine = next(iter(honest_machines().values()))
    attempt = Attempt.called()
    value = attempt.value()
    hears(machine, Prepare(HEAD.digest, BALLOT))
    hears(machine, Ring(HEAD.digest, BALLOT, value.contributions, (), value.voters_next))
    machine.handle(ExchangeFinished(BALLOT, RESULT, NORM), 1.2)
    proposal = Accept(HEAD.digest, BALLOT, value, by_all(attempt, value), BALLOT)
    assert sent(hears(machine, proposal), AcceptedVote)
    second = replace(BALLOT, attempt=2)
    (promise,) = sent(hears(machine, Prepare(HEAD.digest, second), 20.0), Promise)
    assert promise.accepted.value == value
    actions = hears(machine, Ring(HEAD.digest, second, value.contributions), 20.1)
    assert [nack.reason for nack in sent(actions, Nack)] == [Reason.BALLOT_TOO_LOW]
    assert not any(isinstance(each, StartExchange) for each in actions)
