"""A swarm on a terminal: headline, bar toward the global batch, table of peers. Pure."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atom.cli.look.onlooker import Sight
from atom.swarm.identity import short_id
from atom.swarm.records.lease import LEASE_SECONDS, Lease
from atom.swarm.records.view import SwarmView, round_use, trained_on, void_text

_DIGEST_CHARACTERS = 8
_BAR_COLUMNS = 40

_ANY = 10_000
_COLUMNS = (
    "name", "peer", "state", "round", "mini-batches", "seq/s", "tokens/s", "utilisation", "sent",
    "received", "digest", "lease age",
)  # fmt: skip
_NUMBERS = frozenset(_COLUMNS) - {"name", "peer", "state", "digest"}
_FIRST_TO_GO = (
    "received", "sent", "seq/s", "lease age", "tokens/s", "digest", "utilisation", "round",
)  # fmt: skip
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


def headline(sight: Sight) -> Text:
    """`shakespeare   round 12 of 2,000   3 peers   1,234 tokens/s   loss 2.3456`"""
    view = sight.view
    alive = sum(peer.state != "left" for peer in view.peers)
    of_rounds = "" if sight.rounds is None else f" of {sight.rounds:,}"
    parts = [
        Text(view.run, "name"),
        _count("round ", f"{view.round:,}", of_rounds),
        _count("", str(alive), " peer" if alive == 1 else " peers"),
        _count("", f"{view.tokens_per_s:,.0f}", f" {trained_on(view.data_amount)}/s"),
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


class PeersTable:
    """One row per peer; `names` (peer id → name) adds a column. Drops columns on narrow screens."""

    def __init__(
        self,
        view: SwarmView,
        names: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> None:
        """`most`: peers shown; the others are counted. None: all."""
        self._view = view
        self._names = names
        self._most = len(view.peers) if most is None else most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles = self._titles()
        table = self._table(titles)
        for title in filter(titles.count, _FIRST_TO_GO):
            if Measurement.get(console, options.update(max_width=_ANY), table).minimum <= (
                options.max_width
            ):
                break
            titles.remove(title)
            table = self._table(titles, tight=True)
        yield table
        more = len(self._view.peers) - self._most
        if more > 0:
            yield Text(f"and {more:,} more", "quiet")

    def _titles(self) -> list[str]:
        """A sample that is no text has no tokens: a sequence per second is one."""
        absent = {"name"} if self._names is None else set[str]()
        absent |= set() if trained_on(self._view.data_amount) == "tokens" else {"tokens/s"}
        return [title for title in _COLUMNS if title not in absent]

    def _table(self, titles: Sequence[str], tight: bool = False) -> Table:
        """Only a state may take several lines: what is wrong with a peer is no single word."""
        table = Table(
            box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold",
            collapse_padding=tight,
        )  # fmt: skip
        rows = self._rows()
        for title in titles:
            justify: JustifyMethod = "right" if title in _NUMBERS else "left"
            width = max(len(title), *(row[title].cell_len for row in rows)) if rows else None
            if title == "state":
                width = len("accumulating,")
            table.add_column(title, justify=justify, overflow="fold", min_width=width)
        for row in rows:
            table.add_row(*(row[title] for title in titles))
        return table

    def _rows(self) -> list[dict[str, Text]]:
        names = self._names or {}
        # Who has left takes no row from who is there.
        listed = sorted(
            self._view.peers, key=lambda peer: (peer.state == "left", names.get(peer.peer_id, ""))
        )
        return [
            _cells(peer, self._view, names.get(peer.peer_id, "")) for peer in listed[: self._most]
        ]


def swarm(
    sight: Sight, names: Mapping[str, str] | None = None, most_peers: int | None = None
) -> Group:
    """All of it, one below the other."""
    table = PeersTable(sight.view, names, most_peers)
    return Group(headline(sight), Text(), batch_bar(sight.view), Text(), table)


def _cells(peer: Lease, view: SwarmView, name: str) -> dict[str, Text]:
    gone = peer.state == "left"
    row = "dim" if gone else ""
    behind = "yellow" if peer.round != view.round and not gone else row
    digest, age_s = peer.state_digest.hex(), view.age_s(peer)
    aged = "yellow" if age_s > LEASE_SECONDS / 2 and not gone else row
    return {
        "name": Text(name, row or "bold"),
        "peer": Text(short_id(peer.peer_id), row),
        "state": _state(peer, row),
        "round": Text(f"{peer.round:,}", behind),
        "mini-batches": Text(f"{peer.sequences:,}", row),
        "seq/s": Text(f"{peer.sequences_per_s:,.1f}", row),
        "tokens/s": Text(f"{peer.tokens_per_s:,.0f}", row),
        **{title: Text(text, row) for title, text in round_use(peer).items()},
        "digest": Text(digest[:_DIGEST_CHARACTERS] or "-", row),
        "lease age": Text(f"{age_s:.1f} s", aged),
    }


def _state(peer: Lease, row: str) -> Text:
    state = Text(peer.state, _STATE_STYLES.get(peer.state, row))
    trouble = void_text(peer.void_passes, peer.void_cause)
    return Text.assemble(state, (f", {trouble}", "bad")) if trouble else state


def _count(before: str, number: str, after: str) -> Text:
    return Text.assemble(before, (number, "number"), after)
