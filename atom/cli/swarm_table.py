"""A swarm on a terminal: headline, bar toward the global batch, table of peers. Pure."""

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atom.cli.onlooker import Sight
from atom.swarm.records import LEASE_SECONDS
from atom.swarm.view import PeerView, SwarmView

_ID_CHARACTERS = 6
_DIGEST_CHARACTERS = 8
_BAR_COLUMNS = 40

_STATE_STYLES = {
    "starting": "yellow",
    "syncing": "yellow",
    "accumulating": "green",
    "reducing": "cyan",
    "stepping": "magenta",
    "paused": "yellow",
    "leaving": "dim",
    "left": "dim",
}


def short_id(peer_id: str) -> str:
    """The end of a peer id: its beginning is the same for everyone."""
    return f"…{peer_id[-_ID_CHARACTERS:]}"


def headline(sight: Sight) -> Text:
    """`shakespeare   round 12 of 2,000   3 peers   1,234 tokens/s   loss 2.3456`"""
    view = sight.view
    alive = sum(peer.state != "left" for peer in view.peers)
    of_rounds = "" if sight.rounds is None else f" of {sight.rounds:,}"
    parts = [
        Text(view.run, "name"),
        _count("round ", f"{view.round:,}", of_rounds),
        _count("", str(alive), " peer" if alive == 1 else " peers"),
        _count("", f"{view.tokens_per_s:,.0f}", " tokens/s"),
    ]
    if view.loss is not None:
        parts.append(_count("loss ", f"{view.loss:.4f}", ""))
    return Text("   ").join(parts)


def batch_bar(view: SwarmView) -> RenderableType:
    """How near the next round is, in mini-batches (sequences) of the whole swarm."""
    if view.global_batch is None:
        return _count("mini-batches ", str(view.accumulated), " (the global batch is not known)")
    row = Table.grid(padding=(0, 1))
    done = min(view.accumulated, view.global_batch)
    bar = ProgressBar(total=view.global_batch, completed=done, width=_BAR_COLUMNS)
    count = _count("", f"{view.accumulated:,}", f" / {view.global_batch:,}")
    row.add_row(Text("mini-batches"), bar, count)
    return row


def peers_table(view: SwarmView, names: Mapping[str, str] | None = None) -> Table:
    """One row per peer; `names` (peer id → name) adds a column where given."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    if names is not None:
        table.add_column("name", no_wrap=True)
    table.add_column("peer", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=len("accumulating"))
    for title in ("round", "mini-batches", "seq/s", "tokens/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("digest", no_wrap=True)
    table.add_column("lease age", justify="right", no_wrap=True)
    for peer in view.peers:
        named = [] if names is None else [Text(names.get(peer.peer_id, ""), "bold")]
        table.add_row(*named, *_cells(peer, view))
    return table


def swarm(sight: Sight, names: Mapping[str, str] | None = None) -> Group:
    """All of it, one below the other."""
    return Group(headline(sight), Text(), batch_bar(sight.view), peers_table(sight.view, names))


def _cells(peer: PeerView, view: SwarmView) -> tuple[Text, ...]:
    gone = peer.state == "left"
    aged = peer.lease_age_s > LEASE_SECONDS / 2
    behind = peer.round != view.round
    row = "dim" if gone else ""
    return (
        Text(short_id(peer.peer_id), row),
        Text(peer.state, _STATE_STYLES.get(peer.state, row)),
        Text(f"{peer.round:,}", "yellow" if behind and not gone else row),
        Text(f"{peer.mini_batches:,}", row),
        Text(f"{peer.rate:,.1f}", row),
        Text(f"{peer.tokens_per_s:,.0f}", row),
        Text(peer.digest[:_DIGEST_CHARACTERS] or "–", row),
        Text(f"{peer.lease_age_s:.1f} s", "yellow" if aged and not gone else row),
    )


def _count(before: str, number: str, after: str) -> Text:
    return Text.assemble(before, (number, "number"), after)
