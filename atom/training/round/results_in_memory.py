"""Results of exchanges that are in memory: which ones are needed, and requests for missing ones."""

from atom.swarm.chain.commit import Value, Voter
from atom.training.round.events import FetchResult, Phase
from atom.training.round.round_state import RoundContext


def result_is_here(
    context: RoundContext, value: Value, vouchers: tuple[Voter, ...], committed: bool
) -> bool:
    """Return True if the result of a value is in memory; otherwise request it if necessary.

    It is requested unless our own exchange is about to deliver it: from its contributors, some of
    which may have left, and from peers that accepted the value.

    Args:
        context: Shared state of the round; gets the request.
        value: Value whose result is needed.
        vouchers: Voters that may hold the result although they did not contribute.
        committed: True if the value is decided, so that the result is worth a longer wait.
    """
    state = context.state
    if value.result_digest in state.held:
        return True
    coming = context.phase is Phase.REDUCING and state.ballot == value.origin
    if not coming and value.result_digest not in state.fetching:
        keep = results_in_use(context)
        state.fetching.add(value.result_digest)
        contributors = [part.peer_id for part in value.contributions]
        holders = dict.fromkeys(contributors + [voter.peer_id for voter in vouchers])
        holders.pop(context.me.peer_id, None)
        context.out.append(FetchResult(value.result_digest, tuple(holders), committed, keep))
    return False


def results_in_use(context: RoundContext) -> frozenset[bytes] | None:
    """Return the digests of the results that stay in memory, and forget all other results.

    Unneeded results are dropped because each is as large as the model.

    Peers that accepted a value hold its result, because it may still be committed. During an
    exchange the return value is None, and all results stay: the new one may be here already, and
    its digest is not known yet.
    """
    state = context.state
    if context.phase is Phase.REDUCING:
        return None
    values = [accepted.value for accepted in state.acceptor.accepted.values()]
    if state.pending_accept is not None:
        values.append(state.pending_accept[1].value)
    if state.pending_commit is not None:
        values.append(state.pending_commit.value)
    wanted = {value.result_digest for value in values}
    state.held = {digest: state.held[digest] for digest in state.held.keys() & wanted}
    return frozenset(wanted | state.fetching)
