"""`atom contributions`: what each peer gave to a run, from its certified chain."""

import json
from pathlib import Path
from typing import Any

import typer

from atom.cli.look.onlooker import looked_at, run_meant
from atom.cli.shell.signals import run_to_the_end
from atom.cli.shell.terminal import fitting, print_plainly, stdout_console
from atom.swarm.chain.commit_chain import Ledger
from atom.swarm.identity import short_id
from atom.swarm.records.manifest import Manifest

_COLUMNS = ("peer", "sequences", "share", "rounds", "first", "last")


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
    manifest, ledger = swarm.manifest, swarm.ledger
    if as_json:
        typer.echo(json.dumps(contributions(manifest, ledger), indent=2))
        return
    head, console = ledger.head, stdout_console()
    print_plainly(
        f"{manifest.run}   {ledger.sequences:,} sequences in {head.round:,} "
        f"round{'' if head.round == 1 else 's'}, certified up to head {head.digest.hex()[:12]}",
        whole=True,
    )
    width = console.width if console.is_terminal else None
    rows = [_cells(share, whole_id=width is None) for share in _shares(ledger)]
    print_plainly(
        fitting(_COLUMNS, rows, width, words=("peer",), first_to_go=_COLUMNS[:2:-1]), True
    )


def contributions(manifest: Manifest, ledger: Ledger) -> dict[str, Any]:
    """Return the object that `atom contributions --json` prints."""
    return {
        "run": manifest.run,
        "owner": manifest.owner,
        "round": ledger.head.round,
        "head": ledger.head.digest.hex(),
        "sequences": ledger.sequences,
        "peers": _shares(ledger),
    }


def _shares(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the JSON of each peer, largest contribution first."""
    return [
        {
            "peer_id": peer_id,
            "sequences": share.sequences,
            "share": round(share.sequences / ledger.sequences, 6),
            "rounds": share.rounds,
            "first_round": share.first_round,
            "last_round": share.last_round,
        }
        for peer_id, share in ledger.by_share()
    ]


def _cells(share: dict[str, Any], whole_id: bool) -> dict[str, str]:
    return {
        "peer": share["peer_id"] if whole_id else short_id(share["peer_id"]),
        "sequences": f"{share['sequences']:,}",
        "share": f"{share['share']:.1%}",
        "rounds": f"{share['rounds']:,}",
        "first": f"{share['first_round']:,}",
        "last": f"{share['last_round']:,}",
    }
