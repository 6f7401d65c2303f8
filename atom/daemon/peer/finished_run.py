"""A run whose last round this peer has: starting it again has nothing to do, and says so at once.

Otherwise the peer would enter the DHT, trace the model and fill its memory first; and who joins a
run that nobody is left in would only hear that it cannot be reached.
"""

from atom.base.errors import UserError
from atom.config.load import run_from_text
from atom.daemon.console import Console
from atom.daemon.model.kept_run import KeptRun
from atom.daemon.peer.box import Box
from atom.daemon.peer.kept_manifest import read_manifest
from atom.daemon.peer.lifecycle import Ending, ending_note
from atom.training.storage.run_storage import Snapshot, list_snapshots


def says_finished(
    box: Box, name: str, owner: str | None, rounds: int | None, console: Console
) -> bool:
    """Whether the run of that name (and owner) is kept here with the state after its last round,
    whole; then that is said. `rounds`: what its run file says, where one is given."""
    try:
        last = _last_state(box, name, owner, console)
    except UserError:
        return False  # whoever takes the run up mends it, or says what is wrong with it
    if last is None or rounds not in (None, last.round):
        return False  # a run file that was changed is refused, with the reason
    head, digest = last.head.hex(), last.state_digest.hex()
    ending = Ending.ROUNDS_REACHED
    box.events.emit("left", ending=ending.value, round=last.round, head=head, digest=digest)
    console.note(ending_note(ending, last.round))
    return True


def _last_state(box: Box, name: str, owner: str | None, console: Console) -> Snapshot | None:
    """Raises: UserError for what cannot be used as it is."""
    known = read_manifest(box, name)
    if known is None:
        return None
    manifest, _ = known
    rounds = run_from_text(manifest.run_file).run.rounds
    kept_rounds = {snapshot.round for snapshot in list_snapshots(box.state.snapshots)}
    if owner not in (None, manifest.owner) or rounds not in kept_rounds:
        return None  # seen before a long chain is read
    kept = KeptRun.read(box.state.root)
    last = next((each for each in kept.snapshots() if each.round == rounds), None)
    if last is not None:
        console.note(f"checking the snapshot of round {rounds}")
        kept.weights(last)
    return last
