"""`atom contributions`: what each peer gave to a run, from its certified chain."""

import json
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from atom.cli.look.certified_ledger import read_ledger
from atom.cli.look.run_meant import run_meant
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import columns_of, print_plainly, stdout_console
from atom.swarm.chain.ledger import Ledger
from atom.swarm.identity import short_id
from atom.swarm.records.manifest import Manifest

_COLUMNS = ("peer", "mini-batches", "share", "rounds", "first", "last")
_LEAST_COLUMNS = 3


def show_contributions(address: str | None, state: Path | None, as_json: bool) -> None:
    """Prints who gave what. Raises: ControlError; what `read_ledger` does."""
    manifest, ledger = run_to_the_end(read_ledger(*run_meant(address, state)))
    if as_json:
        typer.echo(json.dumps(contributions(manifest, ledger), indent=2))
        return
    print_plainly(headline(manifest, ledger))
    console = stdout_console()
    if console.is_terminal:
        print_plainly(fitting(ledger, console.width))
    else:
        whole = table(ledger, whole_ids=True)
        print_plainly(whole, least_columns=columns_of(whole))


def contributions(manifest: Manifest, ledger: Ledger) -> dict[str, Any]:
    """The keys of `atom contributions --json`."""
    return {
        "run": manifest.run,
        "owner": manifest.owner,
        "round": ledger.head.round,
        "head": ledger.head.digest.hex(),
        "mini_batches": ledger.sequences,
        "peers": [
            {
                "peer_id": peer_id,
                "mini_batches": share.sequences,
                "share": round(share.sequences / ledger.sequences, 6),
                "rounds": share.rounds,
                "first_round": share.first_round,
                "last_round": share.last_round,
            }
            for peer_id, share in ledger.by_share()
        ],
    }


def headline(manifest: Manifest, ledger: Ledger) -> Text:
    """`shakespeare   1,234 mini-batches in 40 rounds, certified up to head 0123456789ab`"""
    head = ledger.head
    return Text.assemble(
        (manifest.run, "name"),
        "   ",
        (f"{ledger.sequences:,}", "number"),
        " mini-batches in ",
        (f"{head.round:,}", "number"),
        f" round{'' if head.round == 1 else 's'}, certified up to head {head.digest.hex()[:12]}",
    )


def fitting(ledger: Ledger, width: int) -> Table:
    """As `table`, with as many of its columns as a terminal of that width has room for."""
    for columns in range(len(_COLUMNS), _LEAST_COLUMNS, -1):
        shown = table(ledger, whole_ids=False, columns=columns)
        if columns_of(shown) <= width:
            return shown
    return table(ledger, whole_ids=False, columns=_LEAST_COLUMNS)


def table(ledger: Ledger, whole_ids: bool, columns: int = len(_COLUMNS)) -> Table:
    """One row per peer that ever gave something."""
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for title in _COLUMNS[:columns]:
        shown.add_column(title, justify="left" if title == "peer" else "right", no_wrap=True)
    for peer_id, share in ledger.by_share():
        cells = (
            peer_id if whole_ids else short_id(peer_id),
            f"{share.sequences:,}",
            f"{share.sequences / ledger.sequences:.1%}",
            f"{share.rounds:,}",
            f"{share.first_round:,}",
            f"{share.last_round:,}",
        )
        shown.add_row(*cells[:columns])
    return shown
