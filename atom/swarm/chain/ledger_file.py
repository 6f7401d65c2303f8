"""A ledger on this machine's disk: so much of the chain was checked, and need not be again.

It only saves time. What is not whole, or of another run, is as good as nothing.
"""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from blake3 import blake3

from atom.base.leftover import remove_leftover
from atom.swarm.chain.branches import Branch, Branches
from atom.swarm.chain.commit import Head, Voter
from atom.swarm.chain.ledger import Ledger, Round, Share

_FORM = 4


class LedgerFile:
    """Of one run, named after its genesis, in a folder that is made when it is needed."""

    def __init__(self, folder: Path, genesis: Head) -> None:
        self._path = folder / f"{genesis.digest.hex()}.json"
        self._genesis = genesis

    def load(self) -> Ledger:
        """What was kept; the run's beginning if there is nothing of use."""
        try:
            digest, _, text = self._path.read_text(encoding="utf-8").partition("\n")
            if digest == blake3(text.encode()).hexdigest():
                return _from_json(json.loads(text))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return Ledger(self._genesis)

    def save(self, ledger: Ledger) -> None:
        """Aside, then in place: another reader may save at the same time. A disk that does not take
        it costs time and nothing else."""
        text = json.dumps(_to_json(ledger), separators=(",", ":"))
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=".")
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    file.write(f"{blake3(text.encode()).hexdigest()}\n{text}")
                os.replace(name, self._path)
            except BaseException:  # also when interrupted: nothing of ours stays
                remove_leftover(Path(name))
                raise


def _to_json(ledger: Ledger) -> dict[str, Any]:
    head = ledger.head
    return {
        "form": _FORM,
        "head": [head.digest.hex(), head.round, head.work, head.cursor],
        "voters": [[v.peer_id, v.incarnation.hex(), v.absences] for v in head.voters],
        "members": head.members,
        "branches": [[b.round, b.backing, b.name.hex()] for b in head.branches],
        "rounds": ledger.rounds,
        "shares": ledger.shares,
    }


def _from_json(kept: dict[str, Any]) -> Ledger:
    """Raises: ValueError, KeyError, TypeError for another form."""
    if kept["form"] != _FORM:
        raise ValueError("another form")
    digest, number, work, cursor = kept["head"]
    voters = tuple(Voter(peer, bytes.fromhex(raw), absent) for peer, raw, absent in kept["voters"])
    branches = Branches.of(
        *(Branch(at, backing, bytes.fromhex(raw)) for at, backing, raw in kept["branches"])
    )
    members = tuple(kept["members"])
    head = Head(bytes.fromhex(digest), number, work, cursor, voters, members, branches)
    shares = {peer: Share(*share) for peer, share in kept["shares"].items()}
    return Ledger(head, tuple(Round(*each) for each in kept["rounds"]), shares)
