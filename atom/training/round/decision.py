"""Deciding: votes for what is proposed, and the step when it is committed, each as soon as the
result is at hand."""

from atom.base.reasons import Reason
from atom.swarm.chain.commit import VOTE_DOMAIN, Commit, Value, Voter, vote_payload
from atom.swarm.chain.membership import signed_by
from atom.swarm.chain.messages import Accept, AcceptedVote
from atom.training.round.coordinator import Coordinator
from atom.training.round.desk import Desk
from atom.training.round.engagement import Engagement
from atom.training.round.events import (
    BETWEEN_STATES,
    Apply,
    FetchResult,
    KeepResults,
    OfferResult,
    Phase,
)
from atom.training.round.scrutiny import problem_with_commit, problem_with_value


class Decision:
    """This replica's part in what is decided, once a ring has made a result."""

    def __init__(self, desk: Desk, coordinator: Coordinator, engagement: Engagement) -> None:
        self._desk = desk
        self._coordinator = coordinator
        self._engagement = engagement

    # ---- accepting

    def on_accept(self, sender: Voter, message: Accept) -> None:
        desk, slots = self._desk, self._desk.state.slots
        if slots.survivors_of(message.ballot) is None:
            highest = slots.highest_promised
            outdone = highest is not None and highest > message.ballot
            desk.nack(
                sender, message.ballot, Reason.BALLOT_TOO_LOW if outdone else Reason.NOT_FOUND
            )
            return
        self._engagement.notice(sender, message.ballot)
        if not self._refused(sender, message):
            desk.state.pending_accept = (sender, message)
            self.go_on()

    def _refused(self, sender: Voter, message: Accept) -> bool:
        problem = problem_with_value(self._desk, message.value)
        if message.value.survivors != self._desk.state.slots.survivors_of(message.ballot):
            problem = Reason.BAD_VOTERS  # a vote that no certificate could use
        if problem is not None:
            self._desk.report("value-refused", reason=problem.value)
            self._desk.nack(sender, message.ballot, problem)
        return problem is not None

    def _accept(self, message: Accept) -> None:
        desk, slots = self._desk, self._desk.state.slots
        survivors = slots.survivors_of(message.ballot)
        if survivors is None:
            return
        slots.slot(survivors).accept(message.ballot, message.value)
        digest = message.value.digest()
        payload = vote_payload(desk.head.digest, message.ballot, digest, survivors)
        signature = desk.sign(VOTE_DOMAIN, signed_by(desk.me, payload))
        averaged = {part.peer_id for part in message.value.contributions}
        if any(voter.peer_id not in averaged for voter in survivors or desk.head.voters):
            desk.out.append(OfferResult(message.value.result_digest))  # its vote takes a fetch
        vote = AcceptedVote(desk.head.digest, message.ballot, digest, signature)
        desk.send(message.ballot.coordinator, vote)

    # ---- committing

    def on_commit(self, sender: Voter, commit: Commit) -> None:
        desk = self._desk
        value = commit.value
        if value.parent != desk.head.digest or value.round != desk.head.round + 1:
            return
        problem = problem_with_commit(desk, commit)
        if problem is not None:
            desk.report("commit-refused", reason=problem.value, peer=sender.peer_id)
            if problem is not Reason.VOTER_ALIVE:
                desk.offence(sender, problem)
            return
        if self._leaves_a_quorums_round(commit):
            return
        desk.state.pending_commit = commit
        self.go_on()

    def _leaves_a_quorums_round(self, commit: Commit) -> bool:
        """A quorum's round comes first, until its result is known to be nowhere; unless we have
        agreed to go on without it."""
        state = self._desk.state
        pending, accepted = state.pending_commit, state.slots.known(commit.survivors).accepted
        if pending is None or pending.survivors or not commit.survivors:
            return False
        return accepted is None or accepted.value != commit.value

    def go_on(self) -> None:
        """A result arrived, or is asked for: continue with whatever waits for it."""
        state = self._desk.state
        if self._desk.phase in BETWEEN_STATES:
            return  # the state itself is being written: once it is whole, a tick asks again
        commit = state.pending_commit
        if commit is not None:
            vouchers = tuple(vote.voter for vote in commit.votes)
            if self._at_hand(commit.value, vouchers, committed=True):
                self._apply(commit)
                return
        # The commit's result may never come: whoever made it alone may be frozen, with the only
        # copy. Those who agreed to go on without it do not wait for it.
        if state.pending_accept is not None:
            sender, message = state.pending_accept
            vouchers = state.slots.survivors_of(message.ballot) or self._desk.head.voters
            if self._at_hand(message.value, vouchers, committed=False):
                state.pending_accept = None
                if not self._refused(sender, message):
                    self._accept(message)

    def _at_hand(self, value: Value, vouchers: tuple[Voter, ...], committed: bool) -> bool:
        """Whether the value's result is in memory; asks for it if no ring of ours brings it.

        Whoever averaged it may be gone by now; whoever accepted it holds it too.
        """
        desk, state = self._desk, self._desk.state
        if value.result_digest in state.held:
            return True
        coming = desk.phase is Phase.REDUCING and state.ballot == value.origin
        if not coming and value.result_digest not in state.fetching:
            self.make_room()
            state.fetching[value.result_digest] = committed
            contributors = [part.peer_id for part in value.contributions]
            holders = dict.fromkeys(contributors + [voter.peer_id for voter in vouchers])
            holders.pop(desk.me.peer_id, None)
            desk.out.append(FetchResult(value.result_digest, tuple(holders), committed))
        return False

    def make_room(self) -> None:
        """Before another result comes: each is as large as the model, and a coordinator that leads
        to nothing could have us hold any number. What we have not accepted, and do not wait for,
        can be had from those who accepted it, if it is committed after all."""
        desk, state = self._desk, self._desk.state
        if desk.phase is Phase.REDUCING:
            return  # its result may be there already, and we do not know its name
        accepted = [s.accepted.value for s in state.slots.by_survivors.values() if s.accepted]
        waiting = [state.pending_accept[1].value] if state.pending_accept else []
        committed = [state.pending_commit.value] if state.pending_commit else []
        wanted = {value.result_digest for value in accepted + waiting + committed}
        state.held &= wanted
        desk.out.append(KeepResults(frozenset(wanted | state.fetching.keys())))

    def on_fetched(self, digest: bytes) -> None:
        state = self._desk.state
        if state.fetching.pop(digest, None) is None:
            return  # asked for at another head
        state.held.add(digest)
        self.go_on()

    def on_fetch_failed(self, digest: bytes) -> None:
        state = self._desk.state
        if digest not in state.fetching:
            return
        committed = state.fetching.pop(digest)
        self._coordinator.on_result_missing(digest)
        accept, commit = state.pending_accept, state.pending_commit
        if accept is not None and accept[1].value.result_digest == digest:
            state.pending_accept = None
        if commit is None or commit.value.result_digest != digest:
            return
        if not committed:  # it was asked for in haste, to vote for it
            self.go_on()
            return
        state.pending_commit = None
        if self._desk.phase is not Phase.SYNCING:
            self._fetch_state_instead(commit)

    def _fetch_state_instead(self, commit: Commit) -> None:
        donors = [part.peer_id for part in commit.value.contributions]
        others = tuple(peer for peer in donors if peer != self._desk.me.peer_id)
        self._engagement.catch_up(others, "the committed result could not be fetched")

    def _apply(self, commit: Commit) -> None:
        desk = self._desk
        self._engagement.stop_ring()
        head = desk.head.after(commit.value)
        desk.out.append(Apply(commit, head))
        desk.applied = commit
        desk.enter(head, b"")
        desk.phase = Phase.STEPPING
        self._coordinator.reset()
