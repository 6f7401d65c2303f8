"""Which run is to be looked at: the one of an address, or that of the daemon on this machine."""

from pathlib import Path

from atom.base.errors import ControlError
from atom.cli.box.control import control_client


def run_meant(address: str | None, state: Path | None) -> tuple[str, Path | None]:
    """Its address, and the state directory of the peer to ask as. Without an address the daemon in
    `state` is asked, else the only one there is. Raises: ControlError."""
    if address is not None:
        return address, state
    try:
        info = control_client(state).info()
    except ControlError as problem:
        hint = f"{problem.hint}\nor give the run's ADDRESS"
        raise ControlError(problem.message, hint) from None
    return info["join_address"], Path(info["state_directory"])
