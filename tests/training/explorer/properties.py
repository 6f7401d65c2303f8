"""Everything that must never happen, looked at after each move."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

from atom.base.errors import PeerRefused, Reason
from atom.swarm.chain.commit import Ballot, MemberCount, Value, Voter, is_quorum
from atom.swarm.chain.commit_chain import verified_heads
from atom.swarm.chain.succession import follows

from . import actors
from .actors import Place, mean_of, norm_of, offered, voter
from .automaton import Voted, Vouching
from .world import Applied, Finished, Froze, Holds, Started, State, Step, World, certifiable


def _raised(world: World, step: Step) -> str | None:
    """Return the exception that the machine raised."""
    return step.outcome.trouble


def _accused(world: World, step: Step) -> str | None:
    """Return a message if an honest peer is put into quarantine."""
    accused = {each.peer_id for each in step.outcome.offences} - {v.peer_id for v in world.liars}
    return "an honest peer is called an offender" if accused else None


# ---- validity


def _invalid(world: World, step: Step) -> str | None:
    """Return how catch-up and the journal refuse a commit that was applied live."""
    for place, commit in step.outcome.applied:
        try:
            verified_heads(place.head, [commit])
        except PeerRefused as refused:
            return f"applied a value that catch-up refuses: {refused.reason}"
        if commit.value.parent_state_digest != place.state_digest:
            return "applied a value of another state"
    return None


def _believed(world: World, step: Step) -> Iterator[tuple[str, Value]]:
    """Yield the values that an honest peer has just voted for or applied."""
    yield from (("voted for", voted.value) for voted in step.outcome.voted)
    yield from (("applied", commit.value) for _, commit in step.outcome.applied)


def _untrue(world: World, step: Step) -> str | None:
    """Return a statement of a value that each voter can know to be false."""
    for verb, value in _believed(world, step):
        if (found := _false_statement(world, value, step.after)) is not None:
            return f"{verb} {found}"
    return None


def _other_electorate(world: World, step: Step) -> str | None:
    """Return how the next voters differ from any choice of `voters_next`."""
    for verb, value in _believed(world, step):
        if (found := _bad_electorate(world, value)) is not None:
            return f"{verb} {found}"
    return None


def _not_our_exchange(world: World, step: Step) -> str | None:
    """Return how a value differs from the exchange that its voter was in."""
    for voted in step.outcome.voted:
        facts = [*world.known(step.after.facts)]
        if (found := _against_own_view(voted, facts)) is not None:
            return f"voted for {found}"
    return None


def _against_own_view(voted: Voted, facts: Sequence[object]) -> str | None:
    """Return how the value differs from the exchange that the voter was in."""
    value, me = voted.value, voter(voted.number, voted.life)
    ours = [
        fact
        for fact in facts
        if isinstance(fact, Started | Finished)
        and (fact.number, fact.life, fact.start.ballot) == (voted.number, voted.life, value.origin)
        and fact.start.parent == value.parent
    ]
    entered = {fact.start.members for fact in ours if isinstance(fact, Started)}
    if not entered:
        named = me in {part.voter for part in value.contributions}
        return "an exchange that names it and that it never entered" if named else None
    if value.contributions not in entered:
        return "contributions that are not in its exchange"
    averaged = any(isinstance(fact, Finished) for fact in ours)
    result = mean_of(value.origin, value.contributions)[0]
    return "another result than its own" if averaged and value.result_digest != result else None


@functools.lru_cache(1 << 14)
def _problem(place: Place, value: Value) -> Reason | None:
    return follows(place.head, value)


def _unfounded(world: World, step: Step) -> str | None:
    """Return a message if a vote's value is not the result of an exchange of a quorum, or may not
    follow its head."""
    for voted in step.outcome.voted:
        value, head = voted.value, world.places[voted.value.parent].head
        if (problem := _problem(world.places[value.parent], value)) is not None:
            return f"voted for a value that may not follow: {problem}"
        facts = world.known(step.after.facts)
        averaged = {
            voter(fact.number, fact.life) for fact in facts
            if isinstance(fact, Finished) and fact.start.ballot == value.origin
            and mean_of(value.origin, fact.start.members)[0] == value.result_digest
        } | world.liars  # fmt: skip
        members = {part.voter for part in value.contributions}
        survivors = set(value.survivors)
        if is_quorum(head.voters, averaged & members) or (survivors and survivors <= averaged):
            continue
        return "voted for a result that no quorum averaged"
    return None


def _reconsidered(world: World, step: Step) -> str | None:
    """Return a message if a voter vouches for two values at a ballot; or averages, or vouches for
    another value, after a value of its own that perhaps was decided.

    A voter gives up its value only for one for which a quorum vouched at a later ballot.
    """
    if not (step.outcome.vouched or step.outcome.started or step.outcome.voted):
        return None
    number, life = step.move[0], voter_life(world, step)
    said = [each for each in world.known(step.after.facts) if isinstance(each, Vouching)]
    ours = [each for each in said if (each.number, each.life) == (number, life)]
    votes = [
        fact for fact in world.known(step.after.facts & world.votes)
        if (fact.number, fact.life, fact.survivors) == (number, life, ())
    ]  # fmt: skip
    for start in step.outcome.started:
        if any(v.value.parent == start.parent and v.ballot < start.ballot for v in votes):
            return "averages again after it accepted a value"
    for one, other in itertools.combinations(ours, 2):
        if (one.parent, one.ballot) == (other.parent, other.ballot):
            return "vouches for two values at one ballot"
    for voted in step.outcome.voted:
        if not voted.survivors and not _vouched_for(world, voted, said):
            return "votes for a value for which no quorum vouches at this ballot"
    return _against_its_vote(world, step, votes, said)


def _vouched_for(world: World, voted: Voted, said: list[Vouching]) -> bool:
    named = voted.value.parent, voted.ballot, voted.value.digest()
    vouchers = {
        voter(each.number, each.life)
        for each in said
        if (each.parent, each.ballot, each.value) == named
    } | world.liars
    return is_quorum(world.places[voted.value.parent].head.voters, vouchers)


def _against_its_vote(
    world: World, step: Step, votes: list[Voted], said: list[Vouching]
) -> str | None:
    for vouched, vote in itertools.product(step.outcome.vouched, votes):
        if vouched.parent != vote.value.parent or vouched.value == vote.value.digest():
            continue
        if vouched.ballot <= vote.ballot:
            continue
        quorums: dict[Ballot, set[Voter]] = {}
        for each in said:
            if each.value == vouched.value and vote.ballot < each.ballot < vouched.ballot:
                quorums.setdefault(each.ballot, set(world.liars)).add(voter(each.number, each.life))
        voters = world.places[vouched.parent].head.voters
        if not any(is_quorum(voters, quorum) for quorum in quorums.values()):
            return "vouches against its own vote"
    return None


def _false_statement(world: World, value: Value, after: State) -> str | None:
    if value.gradient_norm != norm_of(value.result_digest):
        return "a norm that differs from its result's"
    members = [part.peer_id for part in value.contributions]
    if len(set(members)) < len(members):
        return "a member that counts twice"
    for part in value.contributions:
        if part.voter not in world.liars and not _promised(world, part, value, after):
            return "a contribution that no peer promised"
    return None


def _promised(world: World, part: MemberCount, value: Value, after: State) -> bool:
    number = actors.NUMBERS[part.peer_id]
    frozen = offered(number, value.origin)
    counts = part.sequences, part.loss_sum
    froze = world.is_true(after, Froze(number, part.incarnation[0], value.origin))
    return froze and counts == (frozen.sequences, frozen.loss_sum)


def _bad_electorate(world: World, value: Value) -> str | None:
    """Return how the next voters cannot be right, in a world where no peer comes or goes."""
    if len({each.peer_id for each in value.voters_next}) < len(value.voters_next):
        return "a next voter that is there twice"
    place = world.places.get(value.parent)
    bounds = world.bounds
    if place is None or bounds.crashes or bounds.leaves or bounds.branches:
        return None
    members = {part.voter for part in value.contributions}
    dropped = (set(place.head.voters) & members) - set(value.voters_next)
    if dropped - world.liars:  # they may leave
        return "an electorate without a voter that contributed"
    strangers = set(value.voters_next) - set(place.head.voters) - members
    return "a next voter from nowhere" if strangers else None


def _without_result(world: World, step: Step) -> str | None:
    """Return a message if a peer vouches for bytes, or steps with bytes, that it does not have."""
    number = step.move[0]
    for verb, value in _believed(world, step):
        life = voter_life(world, step)
        if not world.is_true(step.after, Holds(number, life, value.result_digest)):
            return f"{verb} a result that is not here"
    return None


def voter_life(world: World, step: Step) -> int:
    return world.automaton.locals[step.after.locals[step.move[0]]].life


def _other_head(world: World, step: Step) -> str | None:
    """Return a message if peers with different heads average."""
    local = world.automaton.locals[step.after.locals[step.move[0]]]
    others = [s for s in step.outcome.started if s.parent != local.head.digest]
    return "peers with different heads average" if others else None


# ---- agreement


def _two_chosen(world: World, step: Step) -> str | None:
    """A value that a quorum accepted may be committed by now, so nothing else ever may. Of three
    voters, a liar can always make two quorums: it votes in both."""
    if world.liars and world.bounds.peers < 4:
        return None
    for voted in step.outcome.voted:
        place = world.places[voted.value.parent]
        if len(certifiable(step.after, world, place)) > 1:
            return "a quorum accepted one value, then another"
    return None


def _two_applied(world: World, step: Step) -> str | None:
    """Return a message if two quorums' commits follow one head.

    Of three voters, two quorums may share one voter alone, so a liar can make two: it votes in
    both. That is proof of its lie, as long as no honest voter is in both as well. Nine lies in
    three ballots, more than the tests search, bring an honest voter into both: it votes with the
    liar, the liar averages with the third voter later, and the first one accepts that result, as
    it may.
    """
    if not step.outcome.applied:
        return None
    applied = [f for f in world.known(step.after.facts) if isinstance(f, Applied) and f.by_quorum]
    for one in applied:
        for other in applied:
            if one.parent == other.parent and one.value != other.value:
                if not world.liars or world.bounds.peers > 3:
                    return "two commits by an ordinary quorum on one head"
                if one.signers & other.signers != world.liars:
                    return "an honest voter is in two certificates of one head"
    return None


def _given_up(world: World, step: Step) -> str | None:
    """Return a message if a catch-up leaves a round that should have been kept."""
    if step.outcome.moved is None:
        return None
    old, new = step.outcome.moved
    if old == new or old.head in (*new.heads, new.head):
        return None
    ours, theirs = (*old.heads, old.head), (*new.heads, new.head)
    fork = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    by_branch = [bool(place.commits[fork - 1].survivors) for place in (old, new)]
    if by_branch == [False, True]:
        return "a quorum's round was given up for a branch"
    return None if any(by_branch) else "a quorum's round was given up for another"


Property = Callable[[World, Step], str | None]
"""Returns how a step breaks it; None if it holds. The step is one that a machine made."""

PROPERTIES: dict[str, Property] = {
    "no exception": _raised,
    "no honest offender": _accused,
    "catch-up accepts it": _invalid,
    "true statements": _untrue,
    "next voters": _other_electorate,
    "own exchange": _not_our_exchange,
    "result of a quorum": _unfounded,
    "kept votes": _reconsidered,
    "result is here": _without_result,
    "one head": _other_head,
    "one value chosen": _two_chosen,
    "agreement": _two_applied,
    "kept rounds": _given_up,
}
