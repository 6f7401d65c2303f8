"""Tables of the page: peers, rounds, contributions → HTML. Pure. Every text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

from atom.swarm.chain.ledger import Ledger, Round
from atom.swarm.records.lease import LEASE_SECONDS, Lease, PeerState
from atom.swarm.records.view import SwarmView, VoidAttempt, round_use, trained_on, void_text

MAX_ROWS = 500
"""Peers listed; a browser has better things to do than to lay out thousands every second."""
MAX_ROUNDS = 12
MAX_ATTEMPTS = 8
"""In vain, of each round: they are whatever leases say, and a crowd has many."""
_ID_CHARACTERS = 6
_DIGEST_CHARACTERS = 8
_PEERS = (
    "peer", "state", "round", "mini-batches", "seq/s", "tokens/s", "utilisation", "sent",
    "received", "digest", "lease age",
)  # fmt: skip
_ROUNDS = ("round", "loss", "mini-batches", "peers", "what happened")
_SHARES = ("peer", "mini-batches", "share", "rounds", "last round")
_NUMBERS = frozenset(
    {"round", "mini-batches", "seq/s", "tokens/s", "utilisation", "sent", "received", "lease age",
     "loss", "peers", "rounds", "last round"}
)  # fmt: skip


def peers(view: SwarmView) -> str:
    """Who is there, and what they do."""
    # A sample that is no text has no tokens: a sequence per second is one.
    of_text = trained_on(view.data_amount) == "tokens"
    titles = [title for title in _PEERS if title != "tokens/s" or of_text]
    rows = [_peer_row(peer, view, titles) for peer in view.peers[:MAX_ROWS]]
    return _table("peers", titles, rows, len(view.peers) - MAX_ROWS)


def rounds(ledger: Ledger, void: Sequence[VoidAttempt]) -> str:
    """The last rounds, newest first, and the attempts that gave none."""
    newest = ledger.rounds[: -MAX_ROUNDS - 1 : -1]
    first = newest[-1].number if newest else 0
    rows, more = [], 0
    for number in range(ledger.head.round + 1, first - 1, -1):
        rows += [_row(_ROUNDS, _round(each)) for each in newest if each.number == number]
        told = [_void(attempt) for attempt in void if attempt.round == number]
        rows += [_row(_ROUNDS, cells, True) for cells in told[:MAX_ATTEMPTS]]
        more += max(0, len(told) - MAX_ATTEMPTS)
    return _table("rounds", _ROUNDS, rows, more)


def contributions(ledger: Ledger) -> str:
    """What each peer gave, over the whole run."""
    listed = ledger.by_share()
    rows = [
        _row(_SHARES, (
            _short(peer_id, f"…{peer_id[-_ID_CHARACTERS:]}"),
            f"{share.sequences:,}",
            _bar(share.sequences / ledger.sequences),
            f"{share.rounds:,}",
            f"{share.last_round:,}",
        ))
        for peer_id, share in listed[:MAX_ROWS]
    ]  # fmt: skip
    return _table("contributions", _SHARES, rows, len(listed) - MAX_ROWS)


def _table(kind: str, titles: Sequence[str], rows: Iterable[str], more: int = 0) -> str:
    inside = "".join(rows)
    if not inside:
        return '<p class="quiet">none</p>'
    head = "".join(f'<th scope="col"{_class(title)}>{title}</th>' for title in titles)
    below = f'<p class="quiet">and {more:,} more</p>' if more > 0 else ""
    whole = f"<thead><tr>{head}</tr></thead><tbody>{inside}</tbody>"
    return f'<table class="{kind}">{whole}</table>{below}'


def _row(titles: Sequence[str], cells: Sequence[str], gone: bool = False) -> str:
    inside = "".join(
        f'<td data-label="{title}"{_class(title)}>{cell}</td>'
        for title, cell in zip(titles, cells, strict=True)
    )
    start = '<tr class="gone">' if gone else "<tr>"
    return f"{start}{inside}</tr>"


def _peer_row(peer: Lease, view: SwarmView, titles: Sequence[str]) -> str:
    cells = dict(zip(_PEERS, _peer(peer, view), strict=True))
    return _row(titles, [cells[title] for title in titles], peer.state == PeerState.LEFT)


def _peer(peer: Lease, view: SwarmView) -> tuple[str, ...]:
    gone = peer.state == PeerState.LEFT
    digest, age_s = peer.state_digest.hex(), view.age_s(peer)
    return (
        _short(peer.peer_id, f"…{peer.peer_id[-_ID_CHARACTERS:]}"),
        f'<span class="state {peer.state}">{peer.state}</span>{_trouble(peer)}',
        _marked(f"{peer.round:,}", peer.round != view.round and not gone),
        f"{peer.sequences:,}",
        f"{peer.sequences_per_s:,.1f}",
        f"{peer.tokens_per_s:,.0f}",
        *round_use(peer).values(),
        _short(digest, digest[:_DIGEST_CHARACTERS] or "-"),
        _marked(f"{age_s:.1f} s", age_s > LEASE_SECONDS / 2 and not gone),
    )


def _trouble(peer: Lease) -> str:
    trouble = void_text(peer.void_passes, peer.void_cause)
    return f' <span class="trouble warn">{escape(trouble)}</span>' if trouble else ""


def _round(each: Round) -> tuple[str, ...]:
    return (
        f"{each.number:,}",
        f"{each.loss:.4f}",
        f"{each.sequences:,}",
        f"{each.members:,}",
        _marked(escape(what_happened(each)), bool(each.branch)),
    )


def _void(attempt: VoidAttempt) -> tuple[str, ...]:
    who = _short(attempt.peer_id, f"…{attempt.peer_id[-_ID_CHARACTERS:]}")
    return f"{attempt.round:,}", "-", "-", "-", f"no result: {escape(attempt.reason)}, says {who}"


def what_happened(each: Round) -> str:
    """A round's peculiarities, in words; empty for an ordinary one."""
    words = []
    if each.branch:
        words.append(f"branch of {each.branch} without a quorum")
    if each.absent:
        words.append(f"{each.absent} voter{'s' if each.absent > 1 else ''} absent")
    return ", ".join(words)


def _bar(share: float) -> str:
    return f'<progress max="1" value="{share:.4f}"></progress>{share:.1%}'


def _short(whole: str, shown: str) -> str:
    return f'<code title="{escape(whole)}">{escape(shown)}</code>'


def _marked(text: str, marked: bool) -> str:
    return f'<span class="warn">{text}</span>' if marked else text


def _class(title: str) -> str:
    return ' class="n"' if title in _NUMBERS else ""
