"""Real daemons on home lines: how much of their time they compute, and what leaves them a round.

    python benchmarks/home_swarm.py --peers 2 4 8 --mbit 20 100 1000 --model 7B
    python benchmarks/home_swarm.py --peers 8 --model 2.7B --useful-tflops 81.6
    python benchmarks/home_swarm.py --peers 8 --faults joining frozen killed
    python benchmarks/home_swarm.py --peers 4 --rule every-step --codec int8 --undialled 1

Each peer is `atom` in a network namespace of its own on a line of its own. What is real: the
daemons, their DHT, rounds, votes, exchange, codec, TLS, every byte of a small model. What is not:
passes sleep for as long as a graphics card would compute; and everything is smaller by two factors,
one for bytes, one for seconds. The small model has so many fewer numbers; `--round-seconds` says
how long a round with its exchange is to last; and the line's rate follows, so that the bytes of an
exchange take the same share of a round as those of `--model` on a line of `--mbit`, up and down
alike. What rounds cost besides (calls, votes, the DHT) does not shrink with them: here it is a
larger share of the time and of the line than it would be of a real round, which lasts `x real`
times as long. `rest s` is that: time without a pass and without averaging. `real` is reckoned from
it: the mean share of the time in passes, if `rest s` were that of a round so much longer.
`--delay-ms` is not made smaller either.

Assumed of the card: an RTX 4090 computes `--useful-tflops`, counting 6 operations per parameter
and token. The default is 71 % of its tensor cores' 165.2 TFLOP/s: 13,067 tokens/s at 1.5B, 2,800
at 7B, 1,400 at 14B. `atom plan` is more careful: 5,035 tokens/s at 2.7B are 81.6. A faster card
makes a line look slower. One inner step of a peer is 131,072 tokens; with every-step that is its
part of a round.

A peer of a swarm of its own runs beside, on the same machine at the same time, with the same
passes: that is `one alone`.

busy: time in passes by the time that passed, of all peers, the least and the mean. upload: bytes
that left a peer's line a round, by the counters of its queues, less 66 bytes of headers a packet;
exchange: those from or to a data port, which are the exchange, votes and states; the rest is the
DHT's; formula: 2 (n - 1) / n x numbers x bytes per number, which for the sparse codec are those of
numbers with a normal distribution, the mean of both ways. With a peer that nobody can dial the
others own larger parts, and the mean is what the formula says. late: what a pass took by what it
was to take. load: of the machine, over one minute, at the end. states: heads whose digest several
peers told, and how many of them differ. joining, frozen, killed: the longest round around it, by
the usual one.
"""

import argparse
import itertools
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from home_figures import (
    Span,
    commits,
    compared_states,
    exchange_seconds,
    longest_gap,
    neither,
    passes,
    payload,
    sequences,
    share,
)
from home_scale import INNER_TOKENS, PARAMETERS, RealRound, small_round
from home_world import (
    FAULTS,
    Terms,
    World,
    after_rounds,
    elements_of,
    number_bytes,
    standing,
    strike,
)
from real_rounds import median_gap
from sides import machine, positive, publish
from swarm_of_processes import Peer

from atom.config.run_file import CODECS, LOCAL_STEPS, UPDATE_RULES
from atom.swarm.exchange.codec import codec_named

BOUND_S = 120.0
BUCKETS = 16
"""Of an exchange. A real one has hundreds, and is the smoother for it."""
JOIN_ROUNDS = 8
"""By then, one who joins has a part in a round, or it is said that it has none."""


def main() -> None:
    options = _options()
    if os.geteuid() != 0:
        raise SystemExit("error: networks of their own need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # networks are taken down
    rows = list(itertools.product(options.peers, options.mbit, options.model))
    measured = list[dict[str, Any]]()
    for row in rows:
        measured.append(one_row(*row, options))
        cells = _cells(measured[-1])
        sys.stderr.write(", ".join(f"{title} {cell}" for title, cell in cells.items()) + "\n")
    body = {
        "benchmark": "home-swarm",
        "rule": options.rule,
        "codec": options.codec,
        "inner_steps": options.inner_steps,
        "useful_tflops": options.useful_tflops,
        "undialled": options.undialled,
        "delay_ms": options.delay_ms,
        "rows": measured,
        "machine": machine(),
    }
    publish(*table(measured), body)


def terms_of(
    peers: int, mbit: float, model: str, options: argparse.Namespace
) -> tuple[RealRound, Terms]:
    """A real round, and the swarm that has it in small."""
    is_local = options.rule == LOCAL_STEPS
    codec = codec_named(options.codec)
    real = RealRound(
        parameters=PARAMETERS[model],
        steps=options.inner_steps if is_local else 1,
        line_bytes_per_s=mbit * 1e6 / 8,
        number_bytes=number_bytes(codec),
        flops_per_s=options.useful_tflops * 1e12,
    )
    passes_a_round = (options.passes or options.inner_steps) if is_local else 1
    elements = elements_of(options.model_dim, options.tokens)
    terms = Terms(
        peers=peers,
        undialled=options.undialled,
        joins_later="joining" in options.faults,
        delay_s=options.delay_ms / 1e3,
        rule=options.rule,
        codec=options.codec,
        model_dim=options.model_dim,
        tokens=options.tokens,
        small=small_round(real, elements, passes_a_round, options.round_seconds),
    )
    os.environ["ATOM_REAL_SEQUENCE_S"] = str(terms.small.pass_s)
    os.environ["ATOM_REAL_BUCKET_BYTES"] = str(int(elements / BUCKETS * codec.element_bytes))
    return real, terms


def one_row(peers: int, mbit: float, model: str, options: argparse.Namespace) -> dict[str, Any]:
    real, terms = terms_of(peers, mbit, model, options)
    small = terms.small
    row = {"peers": peers, "mbit": mbit, "model": model, "small": asdict(small)}
    row["tokens_per_pass"] = real.steps * INNER_TOKENS / small.passes
    with standing(terms) as world:
        present = world.swarm.peers[:peers]
        calm = train(world, present, terms, options.rounds)
        bound_s = BOUND_S + 12 * calm["round_s"]
        faults = {
            kind: befall(world, kind, present, calm["round_s"], bound_s)
            for kind in FAULTS
            if kind in options.faults
        }
        compared, differing = compared_states(peer.events() for peer in world.swarm.peers)
    row |= calm | {"faults": faults, "states": compared, "states_differing": differing}
    real_s = row["tokens_per_pass"] / small.real_seconds
    return row | {"tokens_per_s": calm["sequences_per_s"] * real_s}


def train(world: World, present: Sequence[Peer], terms: Terms, rounds: int) -> dict[str, Any]:
    """Lets everybody train for so many rounds; what came of it."""
    small, first = terms.small, present[0]
    foreseen_s = small.passes * small.pass_s + 2 * small.elements * small.number_bytes / (
        small.line_bytes_per_s
    )
    bound_s = BOUND_S + 3 * foreseen_s
    for peer in (*present, world.alone):
        peer.ask("resume")
    after_rounds(world, present, 1, bound_s)
    begun = len(commits(first.events()))
    after_rounds(world, present, rounds, rounds * bound_s)
    steps = commits(first.events())[begun - 1 : begun + rounds]
    window = Span(steps[0], steps[-1])
    logs = [peer.events() for peer in present]
    busy = [share(passes(log), window) for log in logs]
    rest_s = statistics.mean(neither(log, window) for log in logs) / rounds
    sent = {
        kind: [payload(world.readings[peer.name, kind], window) / rounds for peer in present]
        for kind in ("port", "all")
    }
    alone = _alone_per_s(world.alone, window)
    per_s = sequences(logs[0], window) / window.seconds
    return {
        "round_s": median_gap(steps),
        "slowest_s": longest_gap(steps, window.start),
        "exchange_s": exchange_seconds(logs[0], window),
        "rest_s": rest_s,
        "busy": busy,
        "busy_real": _without(rest_s * (1 - 1 / small.real_seconds), busy, window.seconds / rounds),
        "late": statistics.mean(_durations(logs, window)) / small.pass_s,
        "upload_bytes": sent["all"],
        "exchanged_bytes": sent["port"],
        "of_formula": statistics.mean(sent["port"]) / small.upload_bytes(len(present)),
        "sequences_per_s": per_s,
        "alone_sequences_per_s": alone,
        "by_one_alone": per_s / alone,
        "load": os.getloadavg()[0],
    }


def _without(seconds: float, busy: Sequence[float], round_s: float) -> float:
    """The mean share of time in passes, of a round that is so much shorter."""
    return statistics.mean(busy) * round_s / (round_s - seconds)


def _alone_per_s(peer: Peer, window: Span) -> float:
    """Sequences, over its own whole rounds within the window."""
    steps = [at for at in commits(peer.events()) if window.start <= at <= window.stop]
    if len(steps) < 2:
        return float("nan")
    whole = Span(steps[0], steps[-1])
    return sequences(peer.events(), whole) / whole.seconds


def _durations(logs: Sequence[Sequence[Any]], window: Span) -> list[float]:
    spans = [span for log in logs for span in passes(log)]
    return [span.seconds for span in spans if span.shared(window) == span.seconds]


def befall(
    world: World, kind: str, present: list[Peer], usual_s: float, bound_s: float
) -> dict[str, Any]:
    """Something happens to one peer; how long the others' longest round around it is. Who was
    struck is not waited for any more, and is no longer in `present`."""
    since = time.time()
    victim = strike(world, kind, present)
    present[:] = others = [peer for peer in present if peer is not victim]
    took_part = None
    if kind == "joining":
        mark = len(commits(others[0].events()))
        world.swarm.until(
            lambda: _took_part(victim) or len(commits(others[0].events())) >= mark + JOIN_ROUNDS,
            "a part of the new one, or some rounds without",
            JOIN_ROUNDS * bound_s,
        )
        took_part = _took_part(victim)
    after_rounds(world, others, 1 if kind == "joining" else 2, bound_s)
    gap_s = longest_gap(commits(others[0].events()), since)
    told = {"longest_s": gap_s, "ratio": gap_s / usual_s, "took_s": time.time() - since}
    if took_part is not None:
        told["took_part"] = took_part
    if kind == "frozen":
        back_at = time.time()
        victim.thaw()
        after_rounds(world, others, 1, bound_s)
        told["back_ratio"] = longest_gap(commits(others[0].events()), back_at) / usual_s
    return told


def _took_part(peer: Peer) -> bool:
    return bool(peer.lives) and any(
        dict(zip(event["members"], event["contributed"], strict=True)).get(peer.peer_id)
        for event in peer.rounds
    )


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells, for people."""
    told = [_cells(row) for row in rows]
    return list(told[0]), [list(cells.values()) for cells in told]


def _cells(row: dict[str, Any]) -> dict[str, str]:
    small, peers = row["small"], row["peers"]
    passes_s = small["passes"] * small["pass_s"]
    faults = {kind: _fault(told) for kind, told in row["faults"].items()}
    return {
        "peers": str(peers),
        "Mbit/s": f"{row['mbit']:g}",
        "model": row["model"],
        "x real": f"{small['real_seconds']:.0f}",
        "round s": f"{row['round_s']:.1f}",
        "passes s": f"{passes_s:.1f}",
        "exchange s": f"{row['exchange_s']:.1f}",
        "rest s": f"{row['rest_s']:.1f}",
        "busy": f"{min(row['busy']):.3f}",
        "mean": f"{statistics.mean(row['busy']):.3f}",
        "real": f"{row['busy_real']:.3f}",
        "tokens/s": f"{row['tokens_per_s']:.0f}",
        "by one alone": f"{row['by_one_alone']:.2f}",
        "upload MB": f"{statistics.mean(row['upload_bytes']) / 1e6:.2f}",
        "exchange MB": f"{statistics.mean(row['exchanged_bytes']) / 1e6:.2f}",
        "of formula": f"{row['of_formula']:.3f}",
        **faults,
        "states": f"{row['states']}/{row['states_differing']}",
        "late": f"{row['late']:.3f}",
        "load": f"{row['load']:.1f}",
    }


def _fault(told: dict[str, Any]) -> str:
    is_out = told.get("took_part") is False
    return f"{told['ratio']:.2f}" + (" (never in)" if is_out else "")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=positive, nargs="+", default=[2])
    parser.add_argument("--mbit", type=float, nargs="+", default=[100.0], help="of the real line")
    parser.add_argument("--model", choices=PARAMETERS, nargs="+", default=["7B"])
    parser.add_argument("--rule", choices=UPDATE_RULES, default=LOCAL_STEPS)
    parser.add_argument("--codec", choices=CODECS, default="int4")
    parser.add_argument("--inner-steps", type=positive, default=30, help="of a peer in a round")
    parser.add_argument("--passes", type=positive, help="that they take here; default: as many")
    parser.add_argument("--useful-tflops", type=float, default=117.6)
    parser.add_argument("--faults", choices=FAULTS, nargs="+", default=[], help="in that order")
    parser.add_argument("--undialled", type=int, default=0, help="of the peers")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way; not made smaller")
    parser.add_argument("--rounds", type=positive, default=2, help="that are measured")
    parser.add_argument("--round-seconds", type=float, default=30.0)
    parser.add_argument("--model-dim", type=positive, default=512, help="of the small model")
    parser.add_argument("--tokens", type=positive, default=8, help="of a sequence of it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
