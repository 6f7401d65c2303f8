"""One row per offence: the real machine refuses it by name, and says who is to be quarantined."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from scene import (
    BALLOT,
    GONE,
    HEAD,
    MATE,
    ME,
    NORM,
    RESULT,
    STATE,
    THEM,
    VOTERS,
    Scene,
    averaged,
    decided,
    lease,
    part,
    promise,
    proposed,
    strangers,
    supported,
    vouched,
)

from atom.base.errors import Reason
from atom.swarm.chain import messages
from atom.swarm.chain.commit import (
    VOTE_DOMAIN,
    Ballot,
    Commit,
    MemberCount,
    Value,
    Vote,
    Voter,
    signed_by,
    vote_payload,
)
from atom.training.round import events
from atom.training.round.coordinator import MOST_ONLOOKERS_NOTIFIED
from atom.training.round.events import Phase

PARTS = (part(MATE, 64), part(ME, 32))


def value(digest: bytes = RESULT, **changes: object) -> Value:
    return replace(proposed(*PARTS, result=digest), **changes)  # type: ignore[arg-type]


def in_the_ring(scene: Scene) -> None:
    scene.tick()
    scene.hear(messages.Prepare(HEAD.digest, BALLOT))
    scene.hear(messages.Ring(HEAD.digest, BALLOT, PARTS))


def forged(whole: Value) -> messages.CommitNotice:
    votes = tuple(Vote(voter, bytes(64)) for voter in VOTERS)
    return messages.CommitNotice(Commit(whole, BALLOT, votes))


# ---- what is done


def a_vote_that_nobody_signed(scene: Scene) -> None:
    ballot = lead_to_accept(scene)
    scene.hear(messages.AcceptedVote(HEAD.digest, ballot, bytes(64)))


def lead_to_accept(scene: Scene) -> Ballot:
    ring = scene.until_sent(messages.Ring)
    scene.tell(events.ExchangeFinished(ring.ballot, RESULT, NORM))
    scene.hear(vouched(ring.ballot, MATE, averaged(ring)))
    return ring.ballot


def a_forged_certificate(scene: Scene) -> None:
    scene.tick()
    scene.hear(forged(value()))
    scene.tell(events.ResultFetched(RESULT, in_memory=True))


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (a_vote_that_nobody_signed, Reason.BAD_SIGNATURE),
        (a_forged_certificate, Reason.BAD_CERTIFICATE),
    ],
)
def test_an_offence_names_its_author(act: Callable[[Scene], None], reason: Reason) -> None:
    scene = Scene()
    act(scene)
    assert (MATE.peer_id, reason) in scene.offences
    assert scene.machine.head == HEAD


# ---- what is refused, and no more: honest peers get there, too


def test_an_exchange_with_a_wrong_count_of_ours_is_not_entered() -> None:
    scene = Scene()
    scene.tick()
    scene.hear(messages.Prepare(HEAD.digest, BALLOT))
    mine = MemberCount(ME.peer_id, ME.incarnation, 33, 1.0)
    scene.hear(messages.Ring(HEAD.digest, BALLOT, (PARTS[0], mine)))
    assert not scene.done(events.StartExchange)
    assert [message.reason for message in scene.sent(messages.Nack)] == [Reason.BAD_WEIGHT]


OTHER = b"other".ljust(32)


@pytest.mark.parametrize(
    ("false", "reason"),
    [
        (value(parent_state_digest=OTHER), Reason.STATE_MISMATCH),
        (value(OTHER), Reason.DIGEST_MISMATCH),
    ],
    ids=["a state: joiners would take no other for our head's", "another result than ours"],
)
def test_a_value_that_contradicts_what_we_hold_is_refused(false: Value, reason: Reason) -> None:
    scene = Scene()
    in_the_ring(scene)
    scene.tell(events.ExchangeFinished(BALLOT, RESULT, NORM))
    scene.hear(messages.Accept(HEAD.digest, BALLOT, false, supported(false), BALLOT))
    scene.tell(events.ResultFetched(OTHER, in_memory=True, norm=NORM))
    assert [message.reason for message in scene.sent(messages.Nack)] == [reason]
    assert scene.sent(messages.AcceptedVote) == []


def test_an_exchange_that_broke_is_not_entered_again() -> None:
    """The call for it comes twice: bytes of its first run may still be about."""
    scene = Scene()
    in_the_ring(scene)
    scene.tell(events.ExchangeFailed(BALLOT, "", "broken"))
    assert scene.machine.phase is Phase.PROMISED
    scene.hear(messages.Ring(HEAD.digest, BALLOT, PARTS))
    assert len(scene.done(events.StartExchange)) == 1


@pytest.mark.parametrize(
    ("why", "goes_on"), [("", True), ("leaves", False), ("the last round", False)]
)
def test_beyond_the_last_round_of_the_run_or_ours_nothing_is_counted(
    why: str, goes_on: bool
) -> None:
    scene = Scene(last_round=HEAD.round + 1 + (why != "the last round"))
    if why == "leaves":
        scene.tell(events.LeaveRequested())
    acts = scene.hear(messages.Prepare(HEAD.digest, BALLOT))
    assert acts == [events.Freeze(BALLOT, goes_on)]


# ---- the consequences


def test_a_crowd_of_strangers_does_not_say_what_our_state_is() -> None:
    """The strangers promise, all with a digest that the voters do not have."""
    scene = Scene()
    crowd = strangers(5)
    scene.leases |= {peer_id: lease(voter, 32) for peer_id, voter in crowd.items()}
    ballot = scene.until_sent(messages.Prepare).ballot
    for voter in crowd.values():
        false = promise(ballot, 32, b"f" * 32, voter)
        scene.hear(false, voter)
    scene.hear(promise(ballot, 64))
    scene.tick(1.9)
    assert {peer_id for peer_id, _ in scene.offences} == set(crowd)
    aborts = [
        (act.to, act.message.reason)
        for act in scene.done(events.Send)
        if isinstance(act.message, messages.Abort)
    ]
    assert set(aborts) == {(peer_id, Reason.STATE_MISMATCH) for peer_id in crowd}
    assert {member.voter for member in scene.sent(messages.Ring)[-1].members} == {ME, MATE}, (
        "it goes on"
    )
    assert not scene.done(events.CatchUp)


@pytest.mark.parametrize(
    ("shown", "fetches"),
    [
        ({MATE: b"f", GONE: b"f"}, True),
        ({MATE: b"f", GONE: b"d"}, False),
        ({MATE: b"f"}, False),
        ({}, False),
    ],
    ids=["a quorum shows another", "the voters agree with us", "one of three", "no voter is seen"],
)
def test_an_odd_state_is_fetched_from_voters_if_their_leases_confirm_that_it_is_odd(
    shown: dict[Voter, bytes], fetches: bool
) -> None:
    """The word of a coordinator costs nothing, and strangers have no say."""
    scene = Scene()
    scene.leases = {
        peer_id: replace(lease(voter, 32), state_digest=b"f" * 32)
        for peer_id, voter in strangers(5).items()
    }
    for voter, state in shown.items():
        scene.leases[voter.peer_id] = replace(lease(voter, 32), state_digest=state * 32)
    in_the_ring(scene)
    scene.hear(messages.Abort(HEAD.digest, BALLOT, Reason.STATE_MISMATCH))
    asked = [set(action.donors) for action in scene.done(events.CatchUp)]
    assert asked == [{MATE.peer_id, GONE.peer_id}] * fetches
    assert scene.machine.phase is (Phase.SYNCING if fetches else Phase.ACCUMULATING)


def test_strangers_lead_no_branch_however_long_a_head_was_held_up() -> None:
    """No peer objects to survivors after that; a crowd that calls in turn would keep all busy."""
    scene = Scene()
    scene.tick()
    scene.machine._context.state.overdue = 2.0
    (stranger,) = strangers(1).values()
    ballot = Ballot(1, stranger.peer_id, stranger.incarnation)
    for survivors in ((stranger,), tuple(sorted([stranger, ME]))):
        call = messages.Prepare(HEAD.digest, ballot, survivors)
        scene.hear(call, stranger)
    assert not scene.done(events.Freeze)
    assert [message.reason for message in scene.sent(messages.Nack)] == [Reason.NOT_A_VOTER] * 2


def test_whoever_would_refuse_a_call_says_so_when_asked() -> None:
    scene = Scene()
    scene.tick()
    (stranger,) = strangers(1).values()
    alone, crowd = (MATE,), tuple(sorted([stranger, MATE]))
    wrong_head = messages.Prevote(bytes(32))
    for asked in (
        messages.Prevote(HEAD.digest),
        messages.Prevote(HEAD.digest, alone),
        messages.Prevote(HEAD.digest, crowd),
        wrong_head,
    ):
        scene.hear(asked)
    scene.hear(messages.Prevote(HEAD.digest), stranger)
    reasons = ["", Reason.VOTER_ALIVE, Reason.NOT_A_VOTER, Reason.WRONG_HEAD, Reason.NOT_A_VOTER]
    assert [answer.refusal for answer in scene.sent(messages.PrevoteAnswer)] == reasons


def test_what_strangers_say_during_a_step_pushes_out_no_voters() -> None:
    """Calls and commits wait for its end."""
    scene = Scene()
    scene.tick()
    scene.machine._context.phase = Phase.STEPPING
    scene.hear(messages.Prepare(HEAD.digest, BALLOT))
    far = messages.CommitNotice(decided(replace(HEAD, round=HEAD.round + 7), b"1" * 32, MATE))
    for voter in strangers(100).values():
        for number in range(10):
            ballot = Ballot(number, voter.peer_id, voter.incarnation)
            scene.hear(messages.Prepare(HEAD.digest, ballot), voter)
            scene.hear(far, voter)
    scene.tell(events.Stepped(HEAD.digest, STATE))
    assert [action.ballot for action in scene.done(events.Freeze)] == [BALLOT]


def test_of_a_crowd_few_are_told_of_a_commit() -> None:
    scene, crowd = Scene(), strangers(200)
    elsewhere = {p: replace(lease(v, 0), head=b"x" * 32) for p, v in crowd.items()}
    scene.leases |= elsewhere
    ballot = lead_to_accept(scene)
    digest = scene.sent(messages.Accept)[-1].value.digest()
    payload = signed_by(MATE, vote_payload(HEAD.digest, ballot, digest))
    scene.hear(messages.AcceptedVote(HEAD.digest, ballot, THEM.sign(VOTE_DOMAIN, payload)))
    for _ in range(100):
        scene.tick()
    told = [
        act.to for act in scene.done(events.Send) if isinstance(act.message, messages.CommitNotice)
    ]
    assert MATE.peer_id in told
    assert len(crowd.keys() & told) == MOST_ONLOOKERS_NOTIFIED
