"""Peers that claim a better head than ours, and the proof of their claims."""

from collections.abc import Iterable

from atom.swarm.chain.commit import is_quorum
from atom.swarm.records.lease import Lease, claims_better, preferred
from atom.swarm.transport.limits import Backoff
from atom.training.round.election import OVERDUE_SLACK
from atom.training.round.electorate import alive_voters, is_backed
from atom.training.round.events import CaughtUp, ChainFetched, FetchChain
from atom.training.round.round_state import RoundContext

MOST_DONORS = 8
"""Largest number of donors in one catch-up; each donor that does not answer costs seconds."""
FIRST_DOUBT_S, LONGEST_DOUBT_S = 5.0, 20.0
AT_ONCE = 2
"""Number of chains that are fetched at the same time, while training continues."""


class HeadCandidates:
    """Claims of better heads, and their proofs.

    A claim has no effect until it is proven: its chain must have been fetched and verified, while
    training continues, and must lead as far as was claimed.

    A peer that proved nothing, or did not bring us to its head, is ignored for a time that doubles.
    Known peers are asked before strangers, and peers with fewer failures before other peers, so
    many peers with false claims cannot hide the honest ones forever.
    """

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._doubts = Backoff(FIRST_DOUBT_S, LONGEST_DOUBT_S)
        self._asked: dict[str, Lease] = {}
        """Claims of the peers whose chains are being fetched, by peer id."""
        self._proven: dict[str, ChainFetched] = {}
        """Proven chains that lead to a better head than ours, by peer id."""
        self._claimed_since = float("inf")

    def better(self) -> list[str]:
        """Return the peers to fetch a better head from, best proof first.

        The list is empty until one of them has proven its claim. The call also starts to fetch the
        chains of peers that claim more than has been proven.
        """
        context, head = self._context, self._context.head
        self._proven = {
            p: chain
            for p, chain in self._proven.items()
            if chain.head is not None and chain.head.prefers(head)
        }
        claims = self._claims()
        self._claimed_since = min(self._claimed_since, context.now) if claims else float("inf")
        if context.now >= self._claimed_since + context.patience.behind:
            self._look_into(claims)
        usable = {p: c.head for p, c in self._proven.items() if c.head and self._may_follow(c)}
        peers = [lease.peer_id for lease in claims]
        if usable.keys().isdisjoint(peers):
            return []
        ranks = {peer: usable.get(peer, head).rank for peer in peers}
        return sorted(self._in_turn(peers), key=ranks.__getitem__, reverse=True)

    def forks(self) -> frozenset[bytes]:
        """Return the digests of the heads at which the proven chains open branches."""
        chains = filter(self._may_follow, self._proven.values())
        return frozenset(fork.digest for chain in chains for fork in chain.forks)

    def _may_follow(self, chain: ChainFetched) -> bool:
        """Return False if a branch of this chain left voters that may still decide by quorum.

        Any peer that once contributed can make such a branch alone.
        """
        context = self._context
        branches = chain.head.branches if chain.head else ()
        next_round = context.head.round + 1
        backing = sum(each.backing for each in branches if each.round == next_round)
        overdue = context.state.overdue >= OVERDUE_SLACK
        overdue &= is_backed(context.head, context.me, context.view, backing)
        ours = context.head.branches
        # If the chain lacks a branch of ours, we have left its voters and cannot decide with them.
        gone = set() if chain.head and chain.head.branches[: len(ours)] == ours else {context.me}
        lively = (
            fork
            for fork in chain.forks
            if is_quorum(fork.voters, alive_voters(fork, context.me, context.view) - gone)
        )
        return all(overdue and fork.digest == context.head.digest for fork in lively)

    def _look_into(self, claims: Iterable[Lease]) -> None:
        context = self._context
        proven = [chain.head for chain in self._proven.values() if chain.head]
        best = max([context.head, *proven], key=lambda head: head.rank)
        more = [lease.peer_id for lease in claims if claims_better(lease, best)]
        ready = [peer for peer in self._in_turn(more) if peer not in self._asked]
        for peer in ready[: AT_ONCE - len(self._asked)]:
            self._asked[peer] = context.view.fresh[peer]
            context.out.append(FetchChain(peer, self._asked[peer].round))

    def on_chain(self, fetched: ChainFetched) -> None:
        """Record a fetched chain.

        A chain that ends before the claimed head proves nothing. Otherwise a peer that serves the
        true chain piece by piece could make us catch up again and again.
        """
        peer, claim = fetched.donor, self._asked.pop(fetched.donor)
        if fetched.head is None or claims_better(claim, fetched.head):
            self._doubts.fail(peer, self._context.now)
        else:
            self._proven[peer] = fetched

    def any_state(self) -> list[str]:
        """Return the peers to ask for a state if we have none; doubted peers come last.

        Doubted peers may be asked, because their states are verified, too.
        """
        leases = preferred(self._context.view.fresh.values(), self._context.head)
        offering = [lease.peer_id for lease in leases if lease.state_digest]
        return sorted(self._in_turn(offering), key=self.doubted.__contains__)

    def _claims(self) -> list[Lease]:
        """Return the leases of peers, except doubted ones, that claim a better head; best first."""
        head, leases = self._context.head, self._context.view.fresh.values()
        better = [lease for lease in leases if claims_better(lease, head)]
        doubted = self.doubted if better else frozenset[str]()
        return preferred((lease for lease in better if lease.peer_id not in doubted), head)

    def _in_turn(self, peers: Iterable[str]) -> list[str]:
        """Sort peers in the order to ask them: known, reliable and reachable peers first."""
        known, failures = self._context.head.known, self._doubts.failures
        undialled = self._context.view.undialled
        return sorted(peers, key=lambda p: (p not in known, failures(p), p in undialled))

    def learn(self, event: CaughtUp) -> None:
        """Record the outcome of catching up.

        A peer is doubted if it failed to bring us to a new head with a state. If it did bring us
        to one, even if not to its last head, it may be asked again.
        """
        if not event.state_digest or event.head.digest == self._context.head.digest:
            for peer in event.failed:
                self._proven.pop(peer, None)
                self._doubts.fail(peer, self._context.now)

    @property
    def doubted(self) -> frozenset[str]:
        """Peers whose claims are not believed for now."""
        return self._doubts.held(self._context.now) | self._context.view.quarantined
