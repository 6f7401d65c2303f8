"""What was seen → HTML. Pure. Peers are strangers: every text goes through `escape`.

The page works without its script; that only saves reloading. Whatever changes with time lies in
elements with an id inside `<main>`, which the script replaces one by one.
"""

from collections.abc import Iterable
from html import escape

from atom.extras.dashboard import tables
from atom.extras.dashboard.chart import loss_chart, speed_chart
from atom.extras.dashboard.feed import Seen
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.view import SwarmView, loss_unit, trained_on


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
            f'<div class="curves"><section id="loss" class="card">{_loss(seen)}</section>'
            f'<section id="speed" class="card">{_speed(seen)}</section></div>',
            f'<section id="peers" class="card"><h2>peers</h2>{tables.peers(view)}</section>',
            f'<section id="rounds" class="card">{_rounds(seen)}</section>',
            f'<section id="shares" class="card">{_contributions(seen)}</section>',
        )
    )


def agreement(view: SwarmView) -> str:
    """Whether the replicas that are at the swarm's round hold the same bytes, as they claim."""
    at_round = [peer for peer in _living(view) if peer.round == view.round]
    digests = {peer.state_digest for peer in at_round} - {b""}
    if not digests:
        return "unknown"
    return "identical" if len(digests) == 1 else "different"


def _living(view: SwarmView) -> list[Lease]:
    return [peer for peer in view.peers if peer.state != PeerState.LEFT]


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
    loss = "-" if view.loss is None else f"{view.loss:.4f}"
    yield _tile("loss", loss, loss_unit(view.data_amount))
    yield _tile("speed", f"{view.tokens_per_s:,.0f}", f"{trained_on(view.data_amount)}/s")
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
    certified = seen.ledger is not None and seen.ledger.rounds
    since = "of the whole run" if certified else "since the dashboard started"
    title = f'<h2>loss by round <span class="quiet">{since}</span></h2>'
    if len(seen.losses) < 2:
        return f'{title}<p class="quiet">the curve begins with the second round seen</p>'
    return title + loss_chart(seen.losses)


def _speed(seen: Seen) -> str:
    unit = f"{trained_on(seen.view.data_amount)} per second"
    since = f"{unit} of the swarm, since the dashboard started"
    title = f'<h2>speed <span class="quiet">{since}</span></h2>'
    if len(seen.speeds) < 2:
        return f'{title}<p class="quiet">the curve begins with the second look</p>'
    return title + speed_chart(seen.speeds, unit)


def _rounds(seen: Seen) -> str:
    title = '<h2>rounds <span class="quiet">the newest, from the certified chain</span></h2>'
    if seen.ledger is None:
        return title + _quietly(seen.ledger_note or "the chain was not read")
    why, void = _quietly(seen.ledger_note), seen.view.void_attempts
    if why and not (seen.ledger.rounds or void):
        return title + why
    return title + _as_of(seen) + tables.rounds(seen.ledger, void) + why


def _contributions(seen: Seen) -> str:
    title = (
        '<h2>contributions <span class="quiet">mini-batches in committed rounds of the whole run, '
        "certified by its voters</span></h2>"
    )
    if seen.ledger is None or (seen.ledger_note and not seen.ledger.rounds):
        return title + _quietly("not known without the chain: see rounds")
    return title + _as_of(seen) + tables.contributions(seen.ledger)


def _as_of(seen: Seen) -> str:
    """What was read last time may be old: then every table says how old."""
    assert seen.ledger is not None
    read, now = seen.ledger.head.round, seen.view.round
    if not seen.ledger_note or read >= now:
        return ""
    return _quietly(f"read up to round {read:,}; the run is at round {now:,}")


def _quietly(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>' if text else ""
