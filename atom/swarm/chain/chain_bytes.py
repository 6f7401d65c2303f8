"""A chain of commits as bytes: what peers hand to each other, and what lies on their disks.

A record is a length and an encoded commit notice; a chain is its records, one after the other.
"""

from collections.abc import Callable

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.chain.commit import Commit, Head
from atom.swarm.chain.message_codec import decode, encode
from atom.swarm.chain.messages import CommitNotice

LENGTH_BYTES = 4
MAX_CHAIN_BYTES = 1 << 30
_MAX_RECORD_BYTES = 256 * 1024


def chain_name(head: bytes, since: int = 0) -> str:
    """Under which peers serve the commits after round `since` that lead to `head`."""
    return f"chain/{head.hex()}/{since}" if since else f"chain/{head.hex()}"


def record_of(commit: Commit) -> bytes:
    """One record."""
    raw = encode(CommitNotice(commit))
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


def parse_commits(raw: bytes) -> tuple[list[Commit], int]:
    """The commits in `raw` and where the last whole record ends.

    Raises: PeerRefused if a whole record is not a commit.
    """
    commits: list[Commit] = []
    start = 0
    while start + LENGTH_BYTES <= len(raw):
        size = int.from_bytes(raw[start : start + LENGTH_BYTES], "big")
        if size > _MAX_RECORD_BYTES:
            raise PeerRefused(Reason.TOO_LARGE, "commit record")
        end = start + LENGTH_BYTES + size
        if end > len(raw):
            break
        message = decode(raw[start + LENGTH_BYTES : end])
        if not isinstance(message, CommitNotice):
            raise PeerRefused(Reason.MALFORMED, "not a commit")
        commits.append(message.commit)
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
