"""A donor's chain, checked: only what goes beyond our own is fetched, if it does continue ours."""

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain import Commit, Head
from atom.training.chain_check import verified_heads
from atom.training.donors import Donors
from atom.training.journal import Journal, parse_commits


def donated_chain(
    journal: Journal, donors: Donors, donor: str, claimed: bytes
) -> tuple[list[Commit], list[Head]]:
    """The commits from genesis to the head that `donor` claims, and the heads along them.

    Raises: PeerRefused, OSError.
    """
    if claimed == journal.genesis.digest:
        return [], [journal.genesis]  # no chain leads there, and nobody has one to serve
    here = len(journal.commits)
    if here:
        try:
            news = _parsed(donors.chain(donor, claimed, here))
        except PeerRefused as refused:  # without its own word, to ask again is to wait again
            if refused.reason is not Reason.NOT_FOUND:
                raise
        else:
            if news and news[0].value.parent == journal.head.digest:
                heads = [*journal.heads, *verified_heads(journal.head, news)[1:]]
                return [*journal.commits, *news], _leading(claimed, heads)
    commits = _parsed(donors.chain(donor, claimed, 0))
    return commits, _leading(claimed, journal.verified(commits))


def _parsed(raw: bytes) -> list[Commit]:
    commits, end = parse_commits(raw)
    if end != len(raw):
        raise PeerRefused(Reason.MALFORMED, "the chain ends in the middle of a commit")
    return commits


def _leading(claimed: bytes, heads: list[Head]) -> list[Head]:
    if heads[-1].digest != claimed:
        raise PeerRefused(Reason.WRONG_HEAD, "the chain does not lead to the head claimed")
    return heads
