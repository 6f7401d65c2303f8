"""A voter says that it accepted what nobody has: the others decide without it."""

from collections import Counter, defaultdict

import pytest
from blake3 import blake3
from simulated_fetch import Fetch
from simulated_peer import Process
from simulation import Swarm
from test_held_up import check_rounds_go_on, started

from atom.swarm.chain.commit import (
    REPORT_DOMAIN,
    VOTE_DOMAIN,
    Ballot,
    Contribution,
    Value,
    report_payload,
    vote_payload,
)
from atom.swarm.chain.membership import signed_by, voters_next
from atom.swarm.chain.messages import (
    Accept,
    Accepted,
    AcceptedVote,
    Message,
    Prepare,
    Prevote,
    PrevoteAnswer,
    Promise,
    Ring,
)
from atom.training.round.vocabulary import Fetched

NOWHERE = b"nowhere, nowhere"
NORM = 1.0


def made_up(liar: Process, asking: Process) -> Accepted:
    head, ballot = asking.machine.head, Ballot(1, liar.peer_id, liar.me.incarnation)
    batch = asking.machine.global_batch
    parts = (Contribution(liar.peer_id, liar.me.incarnation, batch, 1.0),)
    result = NOWHERE + blake3(asking.peer_id.encode()).digest(16)  # another one for each
    state = asking.machine.state_digest
    voters = voters_next(head.voters, [liar.me], set(), set())
    value = Value(head.digest, head.round + 1, ballot, result, NORM, state, parts, voters)
    payload = signed_by(liar.me, report_payload(head.digest, result))
    return Accepted(ballot, value, liar.seat.identity.sign(REPORT_DOMAIN, payload))


def answer(liar: Process, asking: Process, message: Message) -> Message | None:
    """It is agreeable, promises at once, and votes for what it made up."""
    match message:
        case Prevote(parent, serial):
            return PrevoteAnswer(parent, serial, "")
        case Prepare(parent, ballot, survivors):
            made, state = made_up(liar, asking), asking.machine.state_digest
            accepted = (None, made) if survivors else (made, None)
            return Promise(parent, ballot, *accepted, 4, 1.0, state, False)
        case Accept(parent, ballot, value):
            payload = vote_payload(parent, ballot, value.digest(), value.survivors)
            signature = liar.seat.identity.sign(VOTE_DOMAIN, signed_by(liar.me, payload))
            return AcceptedVote(parent, ballot, value.digest(), signature)
    return None


def lies_of(liar: Process, swarm: Swarm) -> list[tuple[bytes, bytes]]:
    """From now on; which of them are proposed: parent, coordinator."""
    by_name = {process.peer_id: process for process in swarm.living if process is not liar}
    proposed = list[tuple[bytes, bytes]]()

    def lie(source: str, target: str, message: Message) -> bool:
        if source == liar.peer_id or target != liar.peer_id:
            return source == liar.peer_id
        if isinstance(message, Accept) and message.value.result_digest.startswith(NOWHERE):
            proposed.append((message.parent, message.ballot.coordinator))
        said = answer(liar, by_name[source], message)
        if said is not None:
            swarm.deliver(liar.me, source, said)
        return said is not None

    swarm.network.drop = lie
    return proposed


def check_believed_once(proposed: list[tuple[bytes, bytes]]) -> None:
    heads = [parent for parent, _ in proposed]
    assert heads, "it was believed"
    assert len(heads) == len(set(heads)), "by one coordinator at each head, and by none after it"


def test_a_value_whose_result_is_nowhere_holds_nobody_up() -> None:
    swarm, (liar, *honest) = started(4, 4)
    proposed = lies_of(liar, swarm)
    check_rounds_go_on(swarm, honest, rounds=8)
    assert not honest[0].chain.head.branches
    check_believed_once(proposed)


def test_a_result_that_no_ring_would_have_made_is_not_voted_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who made it up serves it, too: finite, of the norm that the value tells, and absurd."""
    swarm, (liar, *honest) = started(4, 4)
    proposed, looked = lies_of(liar, swarm), Fetch.try_holders

    def served(self: Fetch, until: float) -> None:
        process, digest = self.process, self.wanted.digest
        if digest.startswith(NOWHERE):
            process.later(0.1, lambda: process.handle(Fetched(digest, NORM, 1e30)))
        else:
            looked(self, until)

    monkeypatch.setattr(Fetch, "try_holders", served)
    check_rounds_go_on(swarm, honest, rounds=5)
    made = [c for p in honest for c in p.chain.commits if c.value.result_digest.startswith(NOWHERE)]
    assert not made
    check_believed_once(proposed)


def test_a_coordinator_that_leads_to_nothing_fills_nobody_s_memory() -> None:
    """Each result is as large as the model. Its rings end well, each in another order, and so each
    with another result; then it proposes nothing and calls again."""
    swarm, (liar, *honest) = started(4, 4)
    rings = Counter[bytes]()
    promised = defaultdict[Ballot, dict[str, Promise]](dict)

    def call() -> None:
        ballot = Ballot(int(swarm.agenda.now * 1000), liar.peer_id, liar.me.incarnation)
        for process in honest:
            swarm.deliver(liar.me, process.peer_id, Prepare(process.chain.head.digest, ballot))
        swarm.agenda.after(0.3, lambda: compose(ballot))
        swarm.agenda.after(3.0, call)

    def compose(ballot: Ballot) -> None:
        parents = {promise.parent for promise in promised[ballot].values()}
        if len(promised[ballot]) < len(honest) or len(parents) > 1:
            return
        members = [
            Contribution(p.peer_id, p.me.incarnation, promised[ballot][p.peer_id].sequences, 1.0)
            for p in honest
        ]
        swarm.dice.shuffle(members)
        rings.update(parents)
        for process in honest:
            swarm.deliver(liar.me, process.peer_id, Ring(*parents, ballot, tuple(members)))

    def note(source: str, target: str, message: Message) -> bool:
        if target == liar.peer_id and isinstance(message, Promise):
            promised[message.ballot].setdefault(source, message)
        return source == liar.peer_id

    swarm.network.drop = note
    call()
    most_held = 0
    for _ in range(120):
        swarm.run(0.5)
        for process in honest:
            here = process.machine.head.digest
            held = sum(result.parent == here for result in process.results.values())
            most_held = max(most_held, held)
    assert max(rings.values()) >= 4, "it had its chances"
    assert most_held <= 2, "what was accepted, and one more"
