"""`atom plot`: a run as a picture, from this box's event log or from the swarm's chain."""

from dataclasses import dataclass
from pathlib import Path

import typer

from atom.base.errors import PeerRefused, StorageError
from atom.cli.box.local_daemons import find_state
from atom.cli.look.certified_ledger import read_ledger
from atom.cli.look.run_rounds import PlottedRound, rounds_of_ledger, rounds_of_log
from atom.cli.shell.output_file import refuse_folders, write_whole
from atom.cli.shell.signals import run_to_the_end
from atom.daemon.state_directory import StateDirectory
from atom.swarm.records.codec import decode_manifest

FORMS = (".png", ".svg", ".pdf")


def plot_run(file: Path, address: str | None, state: Path | None) -> None:
    """Writes the picture; says what is on it.

    Raises: typer.BadParameter for another form; StorageError; AddressError; TrustError.
    """
    if file.suffix.lower() not in FORMS:
        forms = ", ".join(FORMS)
        raise typer.BadParameter(f"{file} does not end in one of {forms}", param_hint="FILE")
    refuse_folders(file, "run.png")
    run = _of_swarm(address, state) if address else _of_log(find_state(state))
    from atom.cli.look.run_picture import draw_run  # matplotlib: half a second

    write_whole(file, lambda place: draw_run(place, run.rounds, run.name, run.data_amount))
    first, last = run.rounds[0].number, run.rounds[-1].number
    drawn = f"round {first:,}" if first == last else f"rounds {first:,} to {last:,}"
    typer.echo(f"{file}: {run.name}, {drawn}")


@dataclass(frozen=True)
class _Run:
    name: str
    data_amount: tuple[int, int, int] | None
    rounds: list[PlottedRound]


def _of_log(state: Path) -> _Run:
    folder = StateDirectory(state)
    return _Run(*_named(folder), rounds_of_log(folder.events))


def _named(folder: StateDirectory) -> tuple[str, tuple[int, int, int] | None]:
    """Its name, and how much there is to train on, as its manifest says; of a directory that has
    none, its own name: a log that was moved."""
    try:
        manifest = decode_manifest(folder.manifest.read_bytes(), None)
    except (OSError, PeerRefused):
        return folder.root.name, None
    return manifest.run, manifest.data_amount


def _of_swarm(address: str, state: Path | None) -> _Run:
    manifest, ledger = run_to_the_end(read_ledger(address, state))
    if not ledger.rounds:
        raise StorageError("the run has no committed round yet", "try again after the first round")
    return _Run(manifest.run, manifest.data_amount, rounds_of_ledger(ledger))
