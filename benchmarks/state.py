"""How fast a state arrives from several donors, and what a joiner costs those who train.

Every peer is a process with a transport of its own: TLS, over loopback. Donors hold the same
snapshot file and send at most `--mbit` each, by their own limit, as the peer file's `upload`
would have it. The joiner writes into files, checks every chunk and the whole state. One donor alone
comes first, then all of them.

Then the donors average a tensor in rounds, with a pause in between for what would be training,
first among themselves, then while a joiner fetches without end. The bandwidth given is what the
joiner got for each byte of the rings; a link that is full anyway must give it from somewhere, so
rounds are compared with (1 + given) times what they took alone.

    python benchmarks/state.py
    python benchmarks/state.py --megabytes 1000 --donors 3 --mbit 200
    python benchmarks/state.py --megabytes 16 --mbit 0 --rounds 4
"""

import argparse
import contextlib
import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sides import Timing, machine, positive, publish
from state_peer import ALONE, PATIENCE_S, Averaging, Setting, peer

from atom.swarm.state.arenas import state_digest

MEGABYTE = 10**6


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder, "state.safetensors")
        digest = _write_state(snapshot, options.megabytes)
        with _peers(options, snapshot, Path(folder)) as (joiner, donors):
            contacts = [_ask(donor, "contact") for donor in donors]
            transfers = [
                _transfer(joiner, contacts[:count], digest, options)
                for count in dict.fromkeys((1, len(donors)))
            ]
            rounds = _rounds(joiner, donors, contacts, digest, options)
    _publish(options, transfers, rounds)


def _write_state(path: Path, megabytes: float) -> bytes:
    """Three arenas, as AdamW has them; their digest."""
    elements = max(1, round(megabytes * MEGABYTE / 12))
    generator = torch.Generator().manual_seed(1)
    arenas = {
        name: torch.randn(elements, generator=generator)
        for name in ("master", "exp_avg", "exp_avg_sq")
    }
    save_file(arenas, path)
    return state_digest(arenas)


@contextlib.contextmanager
def _peers(
    options: argparse.Namespace, snapshot: Path, folder: Path
) -> Iterator[tuple[Any, list[Any]]]:
    """Pipes to the joiner and the donors. They end with the context."""
    context = multiprocessing.get_context("spawn")
    settings = [Setting(snapshot, folder / "downloads", None)]
    settings += [Setting(snapshot, folder, options.mbit * 1e6 or None)] * options.donors
    pipes = [context.Pipe() for _ in settings]
    processes = [
        context.Process(target=peer, args=(setting, child))
        for setting, (_, child) in zip(settings, pipes, strict=True)
    ]
    for process, (_, child) in zip(processes, pipes, strict=True):
        process.start()
        child.close()
    parents = [parent for parent, _ in pipes]
    try:
        yield parents[0], parents[1:]
    finally:
        for parent in parents:
            with contextlib.suppress(OSError):
                parent.send(("end",))
        for process in processes:
            process.join(PATIENCE_S)


def _ask(pipe: Any, *command: Any) -> Any:
    pipe.send(command)
    return pipe.recv()


def _transfer(
    joiner: Any, contacts: Sequence[Any], digest: bytes, options: argparse.Namespace
) -> dict[str, Any]:
    """Several fetches of the whole state, each into empty files."""
    taken = [_ask(joiner, "fetch", contacts, digest) for _ in range(options.runs)]
    timing = Timing(tuple(seconds for seconds, _ in taken))
    rate = taken[0][1] * 8 / 1e6 / timing.median_s
    limit = options.mbit * len(contacts)
    return {
        "donors": len(contacts),
        "seconds": timing.to_json(),
        "mbit_per_s": rate,
        "of_the_limit": rate / limit if limit else None,
    }


def _rounds(
    joiner: Any,
    donors: Sequence[Any],
    contacts: Sequence[Any],
    digest: bytes,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Rounds alone, then beside a joiner; the first of each warms up."""
    elements = round(options.ring_megabytes * MEGABYTE / 4 / 1024 + 1) * 1024
    found: dict[str, Any] = {}
    for number, name in enumerate((ALONE, "beside a joiner")):
        count = options.rounds + 1
        averaging = Averaging(tuple(contacts), elements, count, options.pause_s, number)
        if name != ALONE:
            joiner.send(("fetch on", contacts, digest))
        for donor in donors:
            donor.send(("average", averaging))
        runs = list(zip(*(donor.recv() for donor in donors), strict=True))[1:]
        given_bytes = _ask(joiner, "enough") if name != ALONE else 0
        ring_bytes = 2 * (len(donors) - 1) * elements * 4 * count
        found[name] = {
            "seconds": Timing(tuple(max(seconds) for seconds in runs)),
            "given": given_bytes / ring_bytes,
        }
    alone, beside = (found[name]["seconds"] for name in found)
    ratio = beside.median_s / alone.median_s
    return {
        "alone": alone.to_json(),
        "beside": beside.to_json(),
        "ratio": ratio,
        "given": found["beside a joiner"]["given"],
        "beyond_what_is_given": ratio / (1 + found["beside a joiner"]["given"]),
    }


def _publish(
    options: argparse.Namespace, transfers: Sequence[dict[str, Any]], rounds: dict[str, Any]
) -> None:
    rows = [
        [
            f"{options.megabytes:g} MB from {found['donors']}",
            f"{found['seconds']['median_s']:.2f}",
            f"{found['mbit_per_s']:.0f}",
            f"{found['of_the_limit']:.3f}" if found["of_the_limit"] else "",
            "",
        ]
        for found in transfers
    ]
    rows.append(["round alone", f"{rounds['alone']['median_s']:.3f}", "", "", "1.00"])
    rows.append(
        [
            f"round beside a joiner ({rounds['given']:.2f} given)",
            f"{rounds['beside']['median_s']:.3f}",
            "",
            "",
            f"{rounds['ratio']:.2f}",
        ]
    )
    body = {
        "benchmark": "state",
        "machine": machine(),
        "megabytes": options.megabytes,
        "mbit": options.mbit,
        "transfers": list(transfers),
        "rounds": rounds,
    }
    publish(["what", "s (median)", "Mbit/s", "of the limit", "ratio"], rows, body)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=1000.0, help="of the state")
    parser.add_argument("--donors", type=positive, default=3)
    parser.add_argument("--mbit", type=float, default=200.0, help="per donor; 0: no limit")
    parser.add_argument("--runs", type=positive, default=1)
    parser.add_argument("--rounds", type=positive, default=8)
    parser.add_argument("--ring-megabytes", type=float, default=10.0)
    parser.add_argument("--pause-s", type=float, default=0.25, help="between two rings")
    options = parser.parse_args()
    if options.donors < 2:
        parser.error("rounds take at least two")
    return options


if __name__ == "__main__":
    main()
