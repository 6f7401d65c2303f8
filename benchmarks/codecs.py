"""Codecs beside each other: numbers a second and core, and bytes per number, in one process.

What a member does to send is `encode`, with what is lost; what an owner does with a contribution is
`add`, to its own numbers in place; what everybody does with a mean is `decode`. "of means": the
codec in which means travel, where that is another one. Normally distributed numbers; seconds are
those of the processor, so that what else runs matters less.

    python benchmarks/codecs.py
    python benchmarks/codecs.py --elements 4194304 --runs 9 --codecs int4 sparse
"""

import argparse
import time
from collections.abc import Callable, Mapping

import torch
from sides import Timing, machine, positive, publish, ratio

from atom.config.run_file import CODECS
from atom.swarm.exchange.codec import Codec, codec_named

BESIDE = "int4"


def main() -> None:
    options = _options()
    names = [BESIDE, *(name for name in options.codecs if name != BESIDE)]
    codecs = {name: codec_named(name) for name in names}
    found = {name: _measured(codec, options) for name, codec in codecs.items()}
    titles = [
        "codec",
        "bytes per number",
        *(f"{what}, G/s" for what in ("encode", "add", "decode")),
    ]
    titles += [f"encode, x {BESIDE}'s speed"]
    rows = [_row(name, *of, found[BESIDE][1], options.elements) for name, of in found.items()]
    results = {
        name: {"bytes_per_number": bytes_, **{what: t.to_json() for what, t in timings.items()}}
        for name, (bytes_, timings) in found.items()
    }
    body = {"benchmark": "codecs", "machine": machine(), "elements": options.elements}
    publish(titles, rows, {**body, "results": results})


def _measured(codec: Codec, options: argparse.Namespace) -> tuple[float, dict[str, Timing]]:
    """Bytes per number, and times by what is done."""
    elements, generator = options.elements, torch.Generator().manual_seed(1)
    values, own = (torch.randn(elements, generator=generator) for _ in range(2))
    lost, out = torch.empty(elements), torch.empty(elements)
    scratch = torch.empty(4 * elements, dtype=torch.uint8)
    wire = codec.encode(values, scratch, lost).clone()
    timings = {
        "encode": _timed(lambda: codec.encode(values, scratch, lost), options.runs),
        "add": _timed(lambda: codec.add(wire, own, 1.0, own), options.runs),
        "decode": _timed(lambda: codec.decode(wire, out), options.runs),
    }
    return wire.numel() / elements, timings


def _timed(work: Callable[[], object], runs: int) -> Timing:
    """The first run, which warms up, is left out."""
    seconds = []
    for _ in range(-1, runs):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return Timing(tuple(seconds[1:]))


def _row(
    name: str,
    bytes_: float,
    timings: Mapping[str, Timing],
    beside: Mapping[str, Timing],
    elements: int,
) -> list[str]:
    speeds = [f"{elements / timing.median_s / 1e9:.2f}" for timing in timings.values()]
    return [name, f"{bytes_:.4f}", *speeds, f"{ratio(beside['encode'], timings['encode']):.2f}"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=["int8", "sparse"])
    parser.add_argument("--elements", type=positive, default=1 << 22)
    parser.add_argument("--runs", type=positive, default=9)
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
