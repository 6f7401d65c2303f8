"""A chain of commits: as bytes, which peers hand to each other and keep on disk, and verified.

A record is a length and an encoded commit; a chain is its records, one after the other.

A later quorum vouches for all that led to its head, so most certificates could be skipped. They are
checked all the same: a head's digest does not cover votes, so a peer that skips a forged
certificate keeps it, hands it on, and is refused by the next one that looks at that round.
"""

from collections.abc import Callable, Sequence

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm import schema
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.membership import certificate_problem

LENGTH_BYTES = 4
MAX_CHAIN_BYTES = 1 << 30
MAX_RECORD_BYTES = 256 * 1024


def chain_name(head: bytes, since: int = 0) -> str:
    """Under which peers serve the commits after round `since` that lead to `head`."""
    return f"chain/{head.hex()}/{since}" if since else f"chain/{head.hex()}"


def record_of(commit: Commit) -> bytes:
    """One record."""
    raw = schema.encode(commit)
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


def parse_commits(raw: bytes) -> tuple[list[Commit], int]:
    """The commits in `raw` and where the last whole record ends.

    Raises: PeerRefused if a whole record is not a commit.
    """
    commits: list[Commit] = []
    start = 0
    while start + LENGTH_BYTES <= len(raw):
        size = int.from_bytes(raw[start : start + LENGTH_BYTES], "big")
        if size > MAX_RECORD_BYTES:
            raise PeerRefused(Reason.TOO_LARGE, "commit record")
        end = start + LENGTH_BYTES + size
        if end > len(raw):
            break
        commits.append(schema.decode(Commit, raw[start + LENGTH_BYTES : end], MAX_RECORD_BYTES))
        start = end
    return commits, start


def parse_whole_chain(raw: bytes) -> list[Commit]:
    """As `parse_commits`, of bytes that must end with a record. Raises: PeerRefused."""
    commits, end = parse_commits(raw)
    if end != len(raw):
        raise PeerRefused(Reason.MALFORMED, "the chain ends in the middle of a commit")
    return commits


def commits_beyond(here: Head, fetch: Callable[[int], bytes]) -> tuple[bool, list[Commit]]:
    """A donor's commits after `here`, and True; or, if its chain does not go through `here`, all
    of them, and False. `fetch`: those after a round, as bytes. No certificate is looked at.

    Raises: PeerRefused, and what `fetch` raises.
    """
    if here.round:
        try:
            news = parse_whole_chain(fetch(here.round))
        except PeerRefused as refused:  # without its own word, to ask again is to wait again
            if refused.reason is not Reason.NOT_FOUND:
                raise
        else:
            if news and news[0].value.parent == here.digest:
                return True, news
    return False, parse_whole_chain(fetch(0))


def verified_heads(first: Head, commits: Sequence[Commit]) -> list[Head]:
    """The heads along a chain that begins at `first`, which we trust.

    Raises: PeerRefused with BAD_CERTIFICATE, BAD_WEIGHT or WRONG_HEAD.
    """
    heads = _linked_heads(first, commits)
    for head, commit in zip(heads, commits, strict=False):
        problem = certificate_problem(head, commit)
        if problem is not None:
            raise PeerRefused(problem, f"round {commit.value.round}")
    return heads


def _linked_heads(first: Head, commits: Sequence[Commit]) -> list[Head]:
    """The heads along a chain, no certificate looked at. Raises: as `verified_heads`."""
    heads = [first]
    for commit in commits:
        head, value = heads[-1], commit.value
        if value.parent != head.digest or value.round != head.round + 1:
            raise PeerRefused(Reason.WRONG_HEAD, f"round {value.round}")
        if value.sequences <= 0 or not value.voters_next:
            raise PeerRefused(Reason.BAD_WEIGHT, f"round {value.round}")
        heads.append(head.after(value))
    return heads
