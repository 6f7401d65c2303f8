"""One row per offence: the real machine refuses it by name, and says who is to be quarantined."""

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
    MemberCount,
    Value,
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


def lead_to_accept(scene: Scene) -> Ballot:
    ring = scene.until_sent(messages.Ring)
    scene.tell(events.ExchangeFinished(ring.ballot, RESULT, NORM))
    scene.hear(vouched(ring.ballot, MATE, averaged(ring)))
    return ring.ballot


def test_a_vote_that_its_voter_did_not_sign_is_an_offence() -> None:
    scene = Scene()
    scene.hear(messages.AcceptedVote(HEAD.digest, lead_to_accept(scene), bytes(64)))
    assert scene.offences == [(MATE.peer_id, Reason.BAD_SIGNATURE)]
    assert scene.machine.head == HEAD


# ---- what is refused, and no more: honest peers get there, too


def test_an_exchange_with_a_wrong_count_of_ours_is_not_entered() -> None:
    scene = Scene()
    scene.tick()
    scene.hear(messages.Prepare(HEAD.digest, BALLOT))
    mine = MemberCount(ME.peer_id, ME.incarnation, 33, 1.0)
    scene.hear(messages.Ring(HEAD.digest, BALLOT, (PARTS[0], mine)))
    assert not scene.done(events.StartExchange)
    assert scene.refusals == [Reason.BAD_WEIGHT]


OTHER = b"other".ljust(32)


@pytest.mark.parametrize(
    ("false", "reason"),
    [
        # a state: joiners would take no other for our head's
        (value(parent_state_digest=OTHER), Reason.STATE_MISMATCH),
        # another result than ours
        (value(OTHER), Reason.DIGEST_MISMATCH),
    ],
)
def test_a_value_that_contradicts_what_we_hold_is_refused(false: Value, reason: Reason) -> None:
    scene = Scene()
    in_the_ring(scene)
    scene.tell(events.ExchangeFinished(BALLOT, RESULT, NORM))
    scene.hear(messages.Accept(HEAD.digest, BALLOT, false, supported(false), BALLOT))
    scene.tell(events.ResultFetched(OTHER, in_memory=True, norm=NORM))
    assert scene.refusals == [reason]
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
        scene.hear(promise(ballot, 32, b"f" * 32, voter), voter)
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
        ({MATE: b"f", GONE: b"f"}, True),  # a quorum shows another
        ({MATE: b"f", GONE: b"d"}, False),  # the voters agree with us
        ({MATE: b"f"}, False),  # one of three
        ({}, False),  # no voter is seen
    ],
)
def test_an_odd_state_is_fetched_from_voters_if_their_leases_confirm_that_it_is_odd(
    shown: dict[Voter, bytes], fetches: bool
) -> None:
    """The word of a coordinator costs nothing, and strangers have no say."""
    scene, shown_by_strangers = Scene(), dict.fromkeys(strangers(5).values(), b"f")
    states = shown_by_strangers | shown
    scene.leases = {
        voter.peer_id: replace(lease(voter, 32), state_digest=state * 32)
        for voter, state in states.items()
    }
    in_the_ring(scene)
    scene.hear(messages.Abort(HEAD.digest, BALLOT, Reason.STATE_MISMATCH))
    asked = [set(action.donors) for action in scene.done(events.CatchUp)]
    assert asked == [{MATE.peer_id, GONE.peer_id}] * fetches
    assert scene.machine.phase is (Phase.SYNCING if fetches else Phase.ACCUMULATING)


@pytest.mark.parametrize("overdue", [0.0, 2.0])
def test_a_call_is_refused_for_the_same_reason_as_a_prevote(overdue: float) -> None:
    """Strangers lead no branch, however long a head was held up."""
    scene = Scene()
    scene.tick()
    scene.machine._context.state.overdue = overdue
    (stranger,) = strangers(1).values()
    not_a_voter, alone = Reason.NOT_A_VOTER, (MATE,)
    calls = [
        (MATE, (), None),
        (MATE, alone, Reason.VOTER_ALIVE),
        (MATE, tuple(sorted([stranger, MATE])), not_a_voter),
        (stranger, (), not_a_voter),
        (stranger, (stranger,), not_a_voter),
        (stranger, tuple(sorted([stranger, ME])), not_a_voter),
    ]
    for leader, survivors, _ in calls:
        scene.hear(messages.Prevote(HEAD.digest, survivors), leader)
    assert [a.refusal or None for a in scene.sent(messages.PrevoteAnswer)] == [r for *_, r in calls]
    for leader, survivors, _ in calls[1:]:
        ballot = Ballot(1, leader.peer_id, leader.incarnation)
        scene.hear(messages.Prepare(HEAD.digest, ballot, survivors), leader)
    assert scene.refusals == [r for *_, r in calls[1:]]
    scene.hear(messages.Prevote(bytes(32)))
    assert scene.sent(messages.PrevoteAnswer)[-1].refusal == Reason.WRONG_HEAD


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
