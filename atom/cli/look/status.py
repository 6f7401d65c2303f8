"""`atom status` and `atom contributions`: a swarm at one moment, and the work of each peer so far.

The status comes from the DHT alone: a headline, a bar with the progress to the global batch, and a
table of peers. The contributions come from the run's certified chain.
"""

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atom.cli.look.onlooker import looked_at, run_meant
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import fitting, print_plainly, stderr_console, stdout_console
from atom.models.data.corpus import Amount
from atom.swarm.chain.commit_chain import Ledger
from atom.swarm.identity import short_id
from atom.swarm.records.lease import Lease
from atom.swarm.records.manifest import Manifest
from atom.swarm.records.view import (
    SwarmView,
    batch_text,
    dialable_text,
    trained_on,
    validation_by_text,
    void_text,
)

_BAR_COLUMNS = 40
_WORDS = ("peer", "state", "digest")
_FIRST_TO_GO = (
    "received", "sent", "seq/s", "lease age", "tokens/s", "digest", "reach", "utilisation",
    "round", "sequences",
)  # fmt: skip
_SHARE_COLUMNS = ("peer", "sequences", "share", "rounds", "first", "last")
_STATE_STYLES = {
    "accumulating": "green",
    "reducing": "cyan",
    "stepping": "magenta",
    "leaving": "dim",
    "left": "dim",
}


def show_status(address: str | None, state: Path | None, as_json: bool) -> None:
    """Print the page of a swarm, then the run's owner, data and validation losses.

    Args:
        address: Join address of the run; None: the run of the daemon on this machine.
        state: State directory of the daemon, or of the peer to ask as.
        as_json: If True, print JSON instead of a page.

    Raises:
        AddressError: The run cannot be read.
        ControlError: No address was given, and no daemon here knows one.
    """
    seen = run_to_the_end(looked_at(*run_meant(address, state)))
    view, rounds = seen.latest, seen.rounds
    if as_json:
        typer.echo(json.dumps(view.to_json(), indent=2))
        return
    console = stdout_console()
    width = console.width if console.is_terminal else None
    print_plainly(swarm(view, rounds, width), whole=True)
    console.print(f"owner {view.owner}", style="dim", soft_wrap=True)
    if view.data_amount is not None:
        data = Amount(*view.data_amount)
        console.print(f"data  {data}", style="dim", soft_wrap=not console.is_terminal)
    if by_text := validation_by_text(view.validation):
        console.print(f"validation  {by_text}", style="dim", soft_wrap=not console.is_terminal)
    if not view.peers:
        stderr_console().print("[hint]hint:[/]  the run is known, but none of its peers is alive")


def swarm(
    view: SwarmView, rounds: int | None, width: int | None, most_peers: int | None = None
) -> Group:
    """Return the page of a swarm: headline, bar of the global batch, and table of peers.

    Args:
        view: The swarm.
        rounds: Number of rounds of the run; None: endless, or unknown.
        width: Width of the terminal in columns; None: no limit.
        most_peers: Most rows of the table; further peers are only counted. None: no limit.
    """
    # Peers that have left come last, so that they take no row from peers that are present.
    listed = sorted(view.peers, key=lambda peer: peer.state == "left")[:most_peers]
    table = fitting(
        view.columns,
        [_cells(peer, view) for peer in listed],
        width,
        words=_WORDS,
        first_to_go=_FIRST_TO_GO,
    )
    more = len(view.peers) - len(listed)
    notes = f"and {more:,} more" * bool(more), dialable_text(view.peers)
    below = [Text(note, "quiet") for note in notes if note]
    return Group(headline(view, rounds), Text(), batch_bar(view), Text(), table, *below)


def headline(view: SwarmView, rounds: int | None) -> Text:
    """Return one line with the round, peers, speed and loss of a swarm.

    Example: `shakespeare   round 12 of 2,000   3 peers   1,234 tokens/s   loss 2.3456`
    """
    alive = sum(peer.state != "left" for peer in view.peers)
    of_rounds = "" if rounds is None else f" of {rounds:,}"
    parts = [
        Text(view.run, "name"),
        Text(f"round {view.round:,}{of_rounds}"),
        Text(f"{alive} peer" if alive == 1 else f"{alive} peers"),
        Text(f"{view.tokens_per_s:,.0f} {trained_on(view.data_amount)}/s"),
    ]
    if view.loss is not None:
        parts.append(Text(f"loss {view.loss:.4f}"))
    parts += map(Text, view.outlook(rounds))
    return Text("   ", no_wrap=True, overflow="ellipsis").join(parts)


def batch_bar(view: SwarmView) -> RenderableType:
    """Return a bar with the sequences that all peers have counted toward the next round."""
    if view.global_batch is None:
        return Text(f"sequences {view.accumulated:,} (the global batch is not known)")
    row = Table.grid(padding=(0, 1))
    done = min(view.accumulated, view.global_batch)
    bar = ProgressBar(total=view.global_batch, completed=done, width=_BAR_COLUMNS)
    row.add_row("sequences", bar, batch_text(view.accumulated, view.global_batch))
    return row


def _cells(peer: Lease, view: SwarmView) -> dict[str, Text]:
    row, marked = "dim" if peer.state == "left" else "", view.marked(peer)
    cells = {
        title: Text(text, "yellow" if title in marked else row)
        for title, text in view.row(peer).items()
    }
    # A problem comes before the state, because a narrow terminal cuts off the end.
    trouble = void_text(peer.void_passes, peer.void_cause)
    state = Text(peer.state, _STATE_STYLES.get(peer.state, "yellow"))
    cells["state"] = Text.assemble((trouble, "bad"), ", ", state) if trouble else state
    return cells


def show_contributions(address: str | None, state: Path | None, as_json: bool) -> None:
    """Print the contributions of all peers.

    Args:
        address: Join address of the run; None: the run of the daemon on this machine.
        state: State directory of the daemon, or of the peer to ask as.
        as_json: If True, print JSON instead of a table.

    Raises:
        ControlError: No address was given, and no daemon here knows one.
        AddressError: The chain cannot be read.
        TrustError: The peers answer only listed peers.
    """
    swarm = run_to_the_end(looked_at(*run_meant(address, state), chain=True))
    told = contributions(swarm.manifest, swarm.ledger)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    rounds = f"{told['round']:,} round{'' if told['round'] == 1 else 's'}"
    certified = f"certified up to head {told['head'][:12]}"
    headline = f"{told['run']}   {told['sequences']:,} sequences in {rounds}, {certified}"
    console = stdout_console()
    width = console.width if console.is_terminal else None
    rows = [
        {
            "peer": share["peer_id"] if width is None else short_id(share["peer_id"]),
            "sequences": f"{share['sequences']:,}",
            "share": f"{share['share']:.1%}",
            "rounds": f"{share['rounds']:,}",
            "first": f"{share['first_round']:,}",
            "last": f"{share['last_round']:,}",
        }
        for share in told["peers"]
    ]
    print_plainly(headline, whole=True)
    order = _SHARE_COLUMNS[:2:-1]
    print_plainly(fitting(_SHARE_COLUMNS, rows, width, ("peer",), order), whole=True)


def contributions(manifest: Manifest, ledger: Ledger) -> dict[str, Any]:
    """Return the object that `atom contributions --json` prints, largest contribution first."""
    return {
        "run": manifest.run,
        "owner": manifest.owner,
        "round": ledger.head.round,
        "head": ledger.head.digest.hex(),
        "sequences": ledger.sequences,
        "peers": [
            {
                "peer_id": peer_id,
                "sequences": share.sequences,
                "share": round(share.sequences / ledger.sequences, 6),
                "rounds": share.rounds,
                "first_round": share.first_round,
                "last_round": share.last_round,
            }
            for peer_id, share in ledger.by_share()
        ],
    }
