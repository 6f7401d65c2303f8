"""Real daemons on home lines: their time in passes, and the bytes that leave them per round.

    python -m benchmarks.home.run --peers 2 4 8 --mbit 20 100 1000 --model 7B
    python -m benchmarks.home.run --peers 8 --model 2.7B --useful-tflops 81.6
    python -m benchmarks.home.run --peers 8 --faults joining frozen killed
    python -m benchmarks.home.run --peers 4 --rule every-step --codec int8 --undialled 1
    python -m benchmarks.home.run --passes 5 --round-seconds 5 --rounds 1 --model-dim 64

Each peer is `atom` in its own network namespace on its own line. Real: the daemons, their
DHT, rounds, votes, exchange, codec, TLS, all bytes of a small model. Not real: passes sleep for as
long as a graphics card would compute; and everything is smaller by two factors, one for bytes, one
for seconds. `--round-seconds` sets how long a round with its exchange lasts; the line's rate
follows, so that the bytes of an exchange take the same share of a round as the bytes of `--model`
on a line of `--mbit`, up and down alike. Other costs of a round (calls, votes, DHT) do not shrink:
here they are a larger share of the time and of the line than in a real round, which lasts `x real`
times as long. `rest s` is their time: without a pass and without averaging. `real` is estimated:
the mean share of time in passes, if `rest s` belonged to a round so much longer. `--delay-ms` is
not made smaller either.

Assumed of the card: an RTX 4090 computes `--useful-tflops`, counting 6 operations per parameter
and token. The default is 71 % of its tensor cores' 165.2 TFLOP/s: 13,067 tokens/s at 1.5B, 2,800
at 7B, 1,400 at 14B. `atom plan` is more careful: 5,035 tokens/s at 2.7B are 81.6. A faster card
makes a line look slower. One inner step of a peer is 131,072 tokens; with every-step that is its
part of a round.

A peer with its own swarm runs on the same machine at the same time, with the same passes: the
reference of `by one alone`.

busy: time in passes by the time that passed, of all peers, the least and the mean. exchange: bytes
per round that left a peer's line from or to a data port, which carries exchange, votes and states,
by the counters of its queues, less 66 bytes of headers a packet. formula:
2 (n - 1) / n x numbers x bytes per number, for the sparse codec the mean over
normally distributed numbers in both directions. If one peer cannot be dialled, the others own
larger parts, and the mean is as in the formula. late: duration of a pass by its planned duration.
load: of the machine, over one minute, at the end. states: heads whose digest several peers logged,
and how many of these differ. joining, frozen, killed: the longest round around the fault, by the
usual one.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from atom.config.run_file import CODECS, LOCAL_STEPS, UPDATE_RULES
from atom.swarm.exchange.codec import codec_named
from benchmarks.home import figures
from benchmarks.home.small_round import INNER_TOKENS, PARAMETERS, RealRound, small_round
from benchmarks.home.world import (
    FAULTS,
    Terms,
    World,
    after_rounds,
    elements_of,
    number_bytes,
    standing,
    strike,
)
from benchmarks.shared.daemon_logs import commits, median_gap
from benchmarks.shared.program import parser_of, positive, publish, say_row
from benchmarks.shared.real_swarm import Peer

BOUND_S = 120.0
BUCKETS = 16
"""Buckets of an exchange. A real one has hundreds, and is smoother."""
JOIN_ROUNDS = 8
"""Rounds after which a joining peer must have a part in a round, or it counts as left out."""
COLUMNS = {
    "peers": "", "mbit": "g", "model": "", "x real": ".0f", "round s": ".1f", "passes s": ".1f",
    "exchange s": ".1f", "rest s": ".1f", "busy least": ".3f", "busy": ".3f", "real": ".3f",
    "tokens/s": ".0f", "by one alone": ".2f", "exchange MB": ".2f",
    "of formula": ".3f", **dict.fromkeys(FAULTS, ".2f"), "states": "", "differing": "",
    "late": ".3f", "load": ".1f",
}  # fmt: skip


def main() -> None:
    parser = parser_of(
        __doc__,
        peers=[2],
        mbit=[100.0],
        model={"choices": PARAMETERS, "nargs": "+", "default": ["7B"]},
        rule={"choices": UPDATE_RULES, "default": LOCAL_STEPS},
        codec={"choices": CODECS, "default": "int4"},
        inner_steps=30,
        passes={"type": positive, "help": "of a peer in a round; default: as many as inner steps"},
        useful_tflops=117.6,
        faults={"choices": FAULTS, "nargs": "+", "default": [], "help": "in this order"},
        undialled={"type": int, "default": 0, "help": "number of peers that cannot be dialled"},
        delay_ms=0.0,
        rounds=2,
        round_seconds=30.0,
        model_dim=512,
        tokens=8,
    )
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("error: network namespaces need root\nhint:  run this program as root")
    rows = list[dict[str, Any]]()
    for row in itertools.product(options.peers, options.mbit, options.model):
        rows.append(one_row(*row, options))
        say_row(rows[-1], COLUMNS)
    publish("home", rows, COLUMNS, settings=vars(options))


def terms_of(
    peers: int, mbit: float, model: str, options: argparse.Namespace
) -> tuple[RealRound, Terms]:
    """Return a real round, and the terms of the swarm that plays it in small."""
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
    """Return the figures of one swarm."""
    real, terms = terms_of(peers, mbit, model, options)
    small = terms.small
    with standing(terms) as world:
        present = world.swarm.peers[:peers]
        row = train(world, present, terms, options.rounds)
        bound_s = BOUND_S + 12 * row["round s"]
        faults = {
            kind: befall(world, kind, present, row["round s"], bound_s)
            for kind in FAULTS
            if kind in options.faults
        }
        compared, differing = figures.compared_states(peer.events() for peer in world.swarm.peers)
    tokens_per_pass = real.steps * INNER_TOKENS / small.passes
    named = {"peers": peers, "mbit": mbit, "model": model, "x real": small.real_seconds}
    return (
        named
        | row
        | {kind: fault["ratio"] for kind, fault in faults.items()}
        | {
            "small": asdict(small),
            "passes s": small.passes * small.pass_s,
            "tokens/s": row["sequences_per_s"] * tokens_per_pass / small.real_seconds,
            "faults": faults,
            "states": compared,
            "differing": differing,
        }
    )


def train(world: World, present: Sequence[Peer], terms: Terms, rounds: int) -> dict[str, Any]:
    """Let all peers train for so many rounds; return the figures."""
    small, first = terms.small, present[0]
    foreseen_s = small.passes * small.pass_s + 2 * small.elements * small.number_bytes / (
        small.line_bytes_per_s
    )
    bound_s = BOUND_S + 3 * foreseen_s
    for peer in (*present, world.alone):
        peer.ask("resume")
    after_rounds(world, present, 1, bound_s)
    begun = len(commits(first.events()))
    before = world.counted(present)
    after_rounds(world, present, rounds, rounds * bound_s)
    readings = zip(before, world.counted(present), strict=True)
    exchanged = statistics.mean(figures.payload(*each) for each in readings) / rounds
    steps = commits(first.events())[begun - 1 : begun + rounds]
    window = figures.Span(steps[0], steps[-1])
    logs = [peer.events() for peer in present]
    busy = [figures.share(figures.passes(log), window) for log in logs]
    rest_s = statistics.mean(figures.neither(log, window) for log in logs) / rounds
    per_s = figures.sequences(logs[0], window) / window.seconds
    shorter_s = rest_s * (1 - 1 / small.real_seconds)
    round_s = window.seconds / rounds
    return {
        "round s": median_gap(steps),
        "exchange s": figures.exchange_seconds(logs[0], window),
        "rest s": rest_s,
        "busy least": min(busy),
        "busy": statistics.mean(busy),
        "real": statistics.mean(busy) * round_s / (round_s - shorter_s),
        "late": statistics.mean(_durations(logs, window)) / small.pass_s,
        "exchange MB": exchanged / 1e6,
        "of formula": exchanged / small.upload_bytes(len(present)),
        "sequences_per_s": per_s,
        "by one alone": per_s / _alone_per_s(world.alone, window),
        "load": os.getloadavg()[0],
    }


def _alone_per_s(peer: Peer, window: figures.Span) -> float:
    """Return sequences per second over the peer's whole rounds within the window."""
    steps = [at for at in commits(peer.events()) if window.start <= at <= window.stop]
    if len(steps) < 2:
        return float("nan")
    whole = figures.Span(steps[0], steps[-1])
    return figures.sequences(peer.events(), whole) / whole.seconds


def _durations(logs: Sequence[Sequence[Any]], window: figures.Span) -> list[float]:
    spans = [span for log in logs for span in figures.passes(log)]
    return [span.seconds for span in spans if span.shared(window) == span.seconds]


def befall(
    world: World, kind: str, present: list[Peer], usual_s: float, bound_s: float
) -> dict[str, Any]:
    """Strike one peer; return the others' longest round around the fault.

    The victim leaves `present`: no round waits for it any more.
    """
    since = time.time()
    victim = strike(world, kind, present)
    present[:] = others = [peer for peer in present if peer is not victim]
    took_part = None
    if kind == "joining":
        mark = len(commits(others[0].events()))
        world.swarm.until(
            lambda: _took_part(victim) or len(commits(others[0].events())) >= mark + JOIN_ROUNDS,
            "a part of the joining peer, or some rounds without",
            JOIN_ROUNDS * bound_s,
        )
        took_part = _took_part(victim)
    after_rounds(world, others, 1 if kind == "joining" else 2, bound_s)
    gap_s = figures.longest_gap(commits(others[0].events()), since)
    told = {"longest_s": gap_s, "ratio": gap_s / usual_s, "took_s": time.time() - since}
    if took_part is not None:
        told["took_part"] = took_part
    if kind == "frozen":
        back_at = time.time()
        victim.thaw()
        after_rounds(world, others, 1, bound_s)
        told["back_ratio"] = figures.longest_gap(commits(others[0].events()), back_at) / usual_s
    return told


def _took_part(peer: Peer) -> bool:
    return bool(peer.lives) and any(
        dict(zip(event["members"], event["contributed"], strict=True)).get(peer.peer_id)
        for event in peer.rounds
    )


if __name__ == "__main__":
    main()
