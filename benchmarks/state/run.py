"""Speed of a state from several donors, and its cost to donors that train.

Every peer is a process with its own transport: TLS, over loopback. Donors hold the same
snapshot file and send at most `--mbit` each, by their own limit, as the peer file's `upload`
sets it. The joiner writes into files, checks every chunk and the whole state. One donor alone comes
first, then all of them.

Then the donors average a tensor in rounds, with a pause in between in the place of training, first
among themselves, then while a joiner fetches without end.

    python -m benchmarks.state.run --megabytes 1000 --rounds 6
    python -m benchmarks.state.run --megabytes 16 --mbit 10000 --rounds 2
"""

import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from atom.swarm.state.arenas import state_digest
from benchmarks.shared.members import spawned
from benchmarks.shared.program import Timing, parser_of, publish, ratio
from benchmarks.state.peer import Averaging, Setting, peer

MEGABYTE = 10**6
COLUMNS = {"case": "", "donors": "", "seconds": ".3f", "Mbit/s": ".0f", "of the limit": ".3f",
           "ratio": ".2f"}  # fmt: skip


def main() -> None:
    parser = parser_of(
        __doc__, megabytes=1000.0, donors=3, mbit=200.0, rounds=8, ring_megabytes=10.0, pause_s=0.25
    )
    options = parser.parse_args()
    if options.donors < 2:
        parser.error("rounds need at least two donors")
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder, "state.safetensors")
        digest = _write_state(snapshot, options.megabytes)
        settings = [Setting(snapshot, Path(folder) / "downloads", None)]
        settings += [Setting(snapshot, Path(folder), options.mbit * 1e6)] * options.donors
        with spawned(peer, [(each,) for each in settings]) as (_, (joiner, *donors)):
            contacts = [_ask(donor, "contact") for donor in donors]
            counts = dict.fromkeys((1, len(donors)))
            rows = [_transfer(joiner, contacts[:n], digest, options.mbit) for n in counts]
            rows += _rounds(joiner, donors, contacts, digest, options)
    publish("state", rows, COLUMNS, megabytes=options.megabytes, mbit=options.mbit)


def _write_state(path: Path, megabytes: float) -> bytes:
    """Write three arenas, as AdamW has them; return their digest."""
    elements = max(1, round(megabytes * MEGABYTE / 12))
    generator = torch.Generator().manual_seed(1)
    arenas = {
        name: torch.randn(elements, generator=generator)
        for name in ("master", "exp_avg", "exp_avg_sq")
    }
    save_file(arenas, path)
    return state_digest(arenas)


def _ask(pipe: Any, *command: Any) -> Any:
    pipe.send(command)
    return pipe.recv()


def _transfer(joiner: Any, contacts: Sequence[Any], digest: bytes, mbit: float) -> dict[str, Any]:
    """Fetch the whole state into empty files."""
    seconds, received_bytes = _ask(joiner, "fetch", contacts, digest)
    rate = received_bytes * 8 / 1e6 / seconds
    return {
        "case": "state", "donors": len(contacts), "seconds": seconds, "Mbit/s": rate,
        "of the limit": rate / (mbit * len(contacts)),
    }  # fmt: skip


def _rounds(
    joiner: Any, donors: Sequence[Any], contacts: Sequence[Any], digest: bytes, options: Namespace
) -> list[dict[str, Any]]:
    """Run rounds alone, then beside a joiner; the first of each warms up."""
    elements = round(options.ring_megabytes * MEGABYTE / 4 / 1024 + 1) * 1024
    rows, count = list[dict[str, Any]](), options.rounds + 1
    for number, name in enumerate(("rounds alone", "rounds beside a joiner")):
        averaging = Averaging(tuple(contacts), elements, count, options.pause_s, number)
        if number:
            joiner.send(("fetch on", contacts, digest))
        for donor in donors:
            donor.send(("average", averaging))
        runs = list(zip(*(donor.recv() for donor in donors), strict=True))[1:]
        timing = Timing(tuple(max(seconds) for seconds in runs))
        rows.append({"case": name, "donors": len(donors), "seconds": timing})
    rows[1]["ratio"] = ratio(rows[1]["seconds"], rows[0]["seconds"])
    return rows


if __name__ == "__main__":
    main()
