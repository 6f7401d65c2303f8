"""HTML page of a swarm's state. Pure. Peers are strangers, so `escape` is applied to every text.

The page works without its script, which only saves reloading. Everything that changes with time is
in elements with an id inside `<main>`; the script replaces them one by one.
"""

from collections.abc import Iterable, Sequence
from html import escape

from atom.extras.dashboard.chart import loss_chart
from atom.extras.dashboard.feed import Seen
from atom.swarm.chain.commit_chain import Ledger, Round
from atom.swarm.records.lease import Lease, PeerState
from atom.swarm.records.view import (
    SwarmView,
    batch_text,
    loss_meaning,
    loss_unit,
    remaining,
    trained_on,
    void_text,
)


def page(seen: Seen) -> str:
    """Return the whole document."""
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
    """Return the content of `<main>`."""
    view = seen.view
    return "".join(
        (
            f'<header id="head"><h1>{escape(view.run)}</h1>{_liveness(seen)}</header>',
            f'<section id="numbers" class="tiles">{"".join(_tiles(seen))}</section>',
            f'<section id="batch" class="card">{_batch(view)}</section>',
            f'<section id="loss" class="card">{_loss(seen)}</section>',
            _sample(view),
            f'<section id="peers" class="card"><h2>peers</h2>{peers_table(view)}</section>',
            f'<section id="rounds" class="card">{_rounds(seen)}</section>',
            f'<section id="shares" class="card">{_contributions(seen)}</section>',
        )
    )


def agreement(view: SwarmView) -> str:
    """Compare the digests that replicas at the swarm's round claim.

    Returns:
        "identical", "different", or "unknown" if no replica claims a digest.
    """
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
    to_go = remaining(seen.rounds, view.round, view.round_s)
    alive = _living(view)
    at_round = sum(peer.round == view.round for peer in alive)
    behind = len(alive) - at_round
    yield _tile("round", f"{view.round:,}", ", ".join(filter(None, (of_rounds, to_go))))
    loss = "-" if view.loss is None else f"{view.loss:.4f}"
    yield _tile("loss", loss, loss_unit(view.data_amount))
    if view.validation is not None:
        losses = view.validation
        below = filter(None, (loss_meaning(losses), f"after round {losses['round']:,}"))
        yield _tile("validation", f"{losses['loss']:.4f}", ", ".join(below))
        for name, figures in losses["texts"].items():
            yield _tile(f"validation: {name}", f"{figures['loss']:.4f}", loss_meaning(figures))
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
    title = "<h2>sequences toward the next round</h2>"
    if view.global_batch is None:
        count = f"{view.accumulated:,} (the global batch is not known)"
        return f'{title}<p class="count">{count}</p>'
    done = min(view.accumulated, view.global_batch)
    return (
        f'{title}<p class="count">{batch_text(view.accumulated, view.global_batch)}</p>'
        f'<progress max="{view.global_batch}" value="{done}"></progress>'
    )


def _sample(view: SwarmView) -> str:
    # Without a sample there is an empty element, because the script replaces existing ones only.
    if view.sample is None:
        return '<section id="sample" hidden></section>'
    title = f'<h2>sample <span class="quiet">after round {view.sample.round:,}</span></h2>'
    text = f"<p>{escape(view.sample.text)}</p>"
    return f'<section id="sample" class="card">{title}{text}</section>'


def _loss(seen: Seen) -> str:
    title = "<h2>loss by round</h2>"
    if len(seen.ledger.rounds) < 2:
        return title + _quietly(seen.ledger_note or "the curve begins with the second round")
    return title + loss_chart(seen.ledger.rounds, seen.validations, seen.samples)


def _rounds(seen: Seen) -> str:
    title = '<h2>rounds <span class="quiet">newest, from the certified chain</span></h2>'
    why = _quietly(seen.ledger_note)
    if why and not seen.ledger.rounds:
        return title + why
    return title + _as_of(seen) + rounds_table(seen.ledger) + why


def _contributions(seen: Seen) -> str:
    title = (
        '<h2>contributions <span class="quiet">sequences in committed rounds of the whole run, '
        "certified by its voters</span></h2>"
    )
    if seen.ledger_note and not seen.ledger.rounds:
        return title + _quietly("unknown without the chain: see rounds")
    return title + _as_of(seen) + contributions_table(seen.ledger, seen.view)


def _as_of(seen: Seen) -> str:
    """Return a note for tables of an outdated ledger; empty if the ledger is up to date."""
    read, now = seen.ledger.head.round, seen.view.round
    if not seen.ledger_note or read >= now:
        return ""
    return _quietly(f"read up to round {read:,}; the run is at round {now:,}")


def _quietly(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>' if text else ""


MAX_ROWS = 500
"""Most peers in a table: laying out thousands every second would keep the browser busy."""
MAX_ROUNDS = 12
_ROUNDS = ("round", "loss", "sequences", "peers", "outcome")
_SHARES = ("peer", "sequences", "share", "rounds", "last round")
_NUMBERS = frozenset(
    {"round", "sequences", "seq/s", "tokens/s", "utilisation", "sent", "received", "lease age",
     "loss", "peers", "rounds", "last round"}
)  # fmt: skip


def peers_table(view: SwarmView) -> str:
    """Return the table of peers and their states."""
    titles = view.columns
    rows = [_peer_row(peer, view, titles) for peer in view.peers[:MAX_ROWS]]
    return _table("peers", titles, rows, len(view.peers) - MAX_ROWS)


def rounds_table(ledger: Ledger) -> str:
    """Return a table of the last rounds, newest first."""
    newest = ledger.rounds[: -MAX_ROUNDS - 1 : -1]
    return _table("rounds", _ROUNDS, [_row(_ROUNDS, _round(each)) for each in newest])


def contributions_table(ledger: Ledger, view: SwarmView) -> str:
    """Return the table of each peer's contributions over the whole run."""
    listed = ledger.by_share()
    rows = [
        _row(_SHARES, (
            _short(peer_id, view.name(peer_id)),
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
    row, marked = view.row(peer), view.marked(peer)
    cells = {title: _marked(text, title in marked) for title, text in row.items()} | {
        "peer": _short(peer.peer_id, row["peer"]),
        "state": f'<span class="state {peer.state}">{peer.state}</span>{_trouble(peer)}',
        "digest": _short(peer.state_digest.hex(), row["digest"]),
    }
    return _row(titles, [cells[title] for title in titles], peer.state == PeerState.LEFT)


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


def what_happened(each: Round) -> str:
    """Describe how a round was decided, and how many voters were absent."""
    words = []
    if each.branch:
        words.append(f"branch of {each.branch} without a quorum")
    if each.absent:
        words.append(f"{each.absent} voter{'s' if each.absent > 1 else ''} absent")
    return ", ".join(words) or "a quorum decided"


def _bar(share: float) -> str:
    return f'<progress max="1" value="{share:.4f}"></progress>{share:.1%}'


def _short(whole: str, shown: str) -> str:
    return f'<code title="{escape(whole)}">{escape(shown)}</code>'


def _marked(text: str, marked: bool) -> str:
    return f'<span class="warn">{text}</span>' if marked else text


def _class(title: str) -> str:
    return ' class="n"' if title in _NUMBERS else ""
