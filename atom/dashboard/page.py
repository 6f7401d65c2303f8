"""What was seen → HTML. Pure. Peers are strangers: every text goes through `escape`.

The page works without its script; that only saves reloading. Whatever changes with time lies in
elements with an id inside `<main>`, which the script replaces one by one.
"""

from collections.abc import Iterable
from html import escape

from atom.dashboard.chart import loss_chart
from atom.dashboard.feed import Seen
from atom.swarm.records import LEASE_SECONDS, PeerState
from atom.swarm.view import PeerView, SwarmView

MAX_ROWS = 500
"""Peers listed; a browser has better things to do than to lay out thousands every second."""

_ID_CHARACTERS = 6
_DIGEST_CHARACTERS = 8
_KNOWN_STATES = frozenset(state.value for state in PeerState)
_COLUMNS = ("peer", "state", "round", "mini-batches", "seq/s", "tokens/s", "digest", "lease age")
_NUMBERS = frozenset({"round", "mini-batches", "seq/s", "tokens/s", "lease age"})
_LEFT = PeerState.LEFT.value


def page(seen: Seen) -> str:
    """The whole document."""
    return (
        "<!doctype html>"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(seen.view.run)} · atom</title>"
        '<link rel="icon" href="icon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="style.css">'
        '<script src="script.js" defer></script>'
        '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        f"</head><body><main>{content(seen)}</main></body></html>"
    )


def content(seen: Seen) -> str:
    """What is inside `<main>`."""
    view = seen.view
    return "".join(
        (
            f'<header id="head"><h1>{escape(view.run)}</h1>{_liveness(seen)}</header>',
            f'<section id="numbers" class="tiles">{"".join(_tiles(seen))}</section>',
            f'<section id="batch" class="card">{_batch(view)}</section>',
            f'<section id="loss" class="card">{_loss(seen)}</section>',
            f'<section id="peers" class="card">{_peers(view)}</section>',
        )
    )


def agreement(view: SwarmView) -> str:
    """Whether the replicas that are at the swarm's round hold the same bytes, as they claim."""
    digests = [p.digest for p in _living(view) if p.round == view.round and p.digest]
    if not digests:
        return "unknown"
    return "identical" if len(set(digests)) == 1 else "different"


def _living(view: SwarmView) -> list[PeerView]:
    return [peer for peer in view.peers if peer.state != _LEFT]


def _liveness(seen: Seen) -> str:
    if seen.problem:
        return f'<p class="status warn">{escape(seen.problem)}</p>'
    if not _living(seen.view):
        return '<p class="status warn">no peer of this run is alive</p>'
    return '<p class="status good">live</p>'


def _tiles(seen: Seen) -> Iterable[str]:
    view = seen.view
    of_rounds = "" if seen.rounds is None else f"of {seen.rounds:,}"
    alive = _living(view)
    at_round = sum(peer.round == view.round for peer in alive)
    behind = len(alive) - at_round
    yield _tile("round", f"{view.round:,}", of_rounds)
    yield _tile("loss", "-" if view.loss is None else f"{view.loss:.4f}", "nats per token")
    yield _tile("speed", f"{view.tokens_per_s:,.0f}", "tokens/s")
    yield _tile("peers", f"{len(alive):,}", f"{behind:,} behind" if behind else "all up to date")
    agreed = agreement(view)
    kind = {"identical": "good", "different": "bad"}.get(agreed, "")
    yield _tile("replicas", agreed, f"at round {view.round:,}", kind)


def _tile(name: str, number: str, below: str, kind: str = "") -> str:
    return (
        f'<div class="card tile"><h2>{escape(name)}</h2>'
        f'<p class="number {kind}">{escape(number)}</p><p class="quiet">{escape(below)}</p></div>'
    )


def _batch(view: SwarmView) -> str:
    title = "<h2>mini-batches toward the next round</h2>"
    if view.global_batch is None:
        count = f"{view.accumulated:,} (the global batch is not known)"
        return f'{title}<p class="count">{count}</p>'
    done = min(view.accumulated, view.global_batch)
    return (
        f'{title}<p class="count"><b>{view.accumulated:,}</b> / {view.global_batch:,}</p>'
        f'<progress max="{view.global_batch}" value="{done}"></progress>'
    )


def _loss(seen: Seen) -> str:
    title = '<h2>loss by round <span class="quiet">since the dashboard started</span></h2>'
    if len(seen.losses) < 2:
        return f'{title}<p class="quiet">the curve begins with the second round seen</p>'
    return title + loss_chart(seen.losses)


def _peers(view: SwarmView) -> str:
    head = "".join(f'<th scope="col"{_number_class(title)}>{title}</th>' for title in _COLUMNS)
    rows = "".join(_row(peer, view) for peer in view.peers[:MAX_ROWS])
    more = len(view.peers) - MAX_ROWS
    below = f'<p class="quiet">and {more:,} more</p>' if more > 0 else ""
    if not rows:
        return '<h2>peers</h2><p class="quiet">none</p>'
    return (
        f"<h2>peers</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}"
    )


def _row(peer: PeerView, view: SwarmView) -> str:
    cells = zip(_COLUMNS, _cells(peer, view), strict=True)
    gone = ' class="gone"' if peer.state == _LEFT else ""
    inside = "".join(
        f'<td data-label="{title}"{_number_class(title)}>{cell}</td>' for title, cell in cells
    )
    return f"<tr{gone}>{inside}</tr>"


def _cells(peer: PeerView, view: SwarmView) -> tuple[str, ...]:
    """In the order of `_COLUMNS`, as HTML."""
    gone = peer.state == _LEFT
    kind = peer.state if peer.state in _KNOWN_STATES else "other"
    return (
        _short(peer.peer_id, f"…{peer.peer_id[-_ID_CHARACTERS:]}"),
        f'<span class="state {kind}">{escape(peer.state)}</span>',
        _marked(f"{peer.round:,}", peer.round != view.round and not gone),
        f"{peer.mini_batches:,}",
        f"{peer.rate:,.1f}",
        f"{peer.tokens_per_s:,.0f}",
        _short(peer.digest, peer.digest[:_DIGEST_CHARACTERS] or "-"),
        _marked(f"{peer.lease_age_s:.1f} s", peer.lease_age_s > LEASE_SECONDS / 2 and not gone),
    )


def _short(whole: str, shown: str) -> str:
    return f'<code title="{escape(whole)}">{escape(shown)}</code>'


def _marked(text: str, marked: bool) -> str:
    return f'<span class="warn">{escape(text)}</span>' if marked else escape(text)


def _number_class(title: str) -> str:
    return ' class="n"' if title in _NUMBERS else ""
