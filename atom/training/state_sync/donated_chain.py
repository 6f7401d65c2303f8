"""A donor's chain, checked: only what goes beyond our own is fetched, if it does continue ours."""

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.commit_chain import commits_beyond, verified_heads
from atom.training.state_sync.donors import Donors
from atom.training.storage.journal import Journal


def donated_chain(
    journal: Journal, donors: Donors, donor: str, claimed: bytes
) -> tuple[list[Commit], list[Head]]:
    """The commits from genesis to the head that `donor` claims, and the heads along them.

    Raises: PeerRefused, OSError.
    """
    if claimed == journal.genesis.digest:
        return [], [journal.genesis]  # no chain leads there, and nobody has one to serve
    further, commits = commits_beyond(
        journal.head, lambda since: donors.chain(donor, claimed, since)
    )
    if further:
        heads = [*journal.heads, *verified_heads(journal.head, commits)[1:]]
        return [*journal.commits, *commits], _leading(claimed, heads)
    return commits, _leading(claimed, journal.verified(commits))


def _leading(claimed: bytes, heads: list[Head]) -> list[Head]:
    if heads[-1].digest != claimed:
        raise PeerRefused(Reason.WRONG_HEAD, "the chain does not lead to the head claimed")
    return heads
