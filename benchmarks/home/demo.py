"""Two modes side by side on home lines: the same model, text and seconds, and a picture.

    python -m benchmarks.home.demo --picture home.png
    python -m benchmarks.home.demo --peers 2 --seconds 10

Two swarms of real daemons train a GPT of 0.8 million parameters on the text of Python's standard
library, at the same time on this machine, each peer in its own network namespace on a line of
`--mbit` in both directions. One swarm runs `every-step` with float32, the other `local-steps` with
int4 and 30 steps of each peer a round. The picture shows validation loss over the seconds since
both began. Needs root, `ip` and `tc`.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.home.world import settle
from benchmarks.shared.networks import homes
from benchmarks.shared.program import parser_of, publish, say
from benchmarks.shared.real_swarm import Swarm, gather, swarm_in
from benchmarks.shared.run_text import run_text

Curve = Sequence[tuple[float, float]]
COLUMNS = {"mode": "", "codec": "", "rounds": "", "sequences": ",", "founder's upload, MB": ".1f",
           "loss": ".3f", "at second": ".0f"}  # fmt: skip
SEQUENCES, INNER_STEPS = 8, 30


@dataclass(frozen=True)
class Mode:
    """Settings of one swarm."""

    name: str
    codec: str
    steps: int
    """Steps of each peer between two rounds."""
    validates: int
    """Rounds between two validation losses."""

    def run_text(self, peers: int) -> str:
        model = {"layers": 4, "heads": 4, "model_dim": 128, "sequence_tokens": 64}
        batch = {"global_sequences": SEQUENCES * self.steps * peers}
        tables: dict[str, dict[str, Any]] = {
            "model": model,
            "data": {"validation_fraction": 0.05},
            "batch": batch | {"micro_batch_sequences": SEQUENCES},
            "optimizer": {"learning_rate": 2e-3},
            "swarm": {"grace_seconds": 2, "codec": self.codec},
            "snapshot": {"every_rounds": 1000},
            "validation": {"every_rounds": self.validates, "batches": 4},
        }
        if self.name == "local-steps":
            tables["update"] = {"rule": self.name, "inner_sequences": SEQUENCES}
        return run_text(self.name, **tables)


MODES = (Mode("every-step", "float32", 1, 5), Mode("local-steps", "int4", INNER_STEPS, 1))


def _row(mode: Mode, rounds: Sequence[Mapping[str, Any]], began: float) -> dict[str, Any]:
    """Return the figures of a swarm from its founder's rounds."""
    validated = [event for event in rounds if "validation_loss" in event]
    curve = [(event["time"] - began, event["validation_loss"]) for event in validated]
    seconds, loss = curve[-1] if curve else (0.0, float("nan"))
    sent_bytes = sum(event.get("sent_bytes", 0) for event in rounds)
    return {
        "mode": mode.name, "codec": mode.codec, "rounds": len(rounds),
        "sequences": sum(event["sequences"] for event in rounds),
        "founder's upload, MB": sent_bytes / 1e6, "loss": loss, "at second": seconds,
        "curve": curve,
    }  # fmt: skip


def trained(peers: int, mbit: int, seconds: int) -> list[dict[str, Any]]:
    """Train both swarms at the same time; return a row for each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atom-home-")))
        places = stack.enter_context(homes([False] * (peers * len(MODES))))
        swarms = list[Swarm]()
        for number, mode in enumerate(MODES):
            (folder / mode.name).mkdir()
            names = [f"p{n}" for n in range(peers)]
            inside = swarm_in(folder / mode.name, mode.run_text(peers), names, "auto")
            swarms.append(stack.enter_context(inside))
            settle(swarms[-1], places[number * peers : (number + 1) * peers])
        for swarm in swarms:
            swarm.found(standing=True)
        gather(*swarms)
        for place in places:
            place.slow_down(f"{mbit}mbit")
        began = time.time()
        for swarm in swarms:
            swarm.resume()
        while time.time() < began + seconds:
            time.sleep(1.0)  # the swarms train on their own
            assert all(peer.exit_code is None for swarm in swarms for peer in swarm.peers)
        both = zip(MODES, swarms, strict=True)
        return [_row(mode, swarm.founder.rounds, began) for mode, swarm in both]


def draw(path: Path, curves: Mapping[str, Curve], title: str) -> None:
    """Draw validation losses over seconds."""
    figure = Figure(figsize=(9, 5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, points in curves.items():
        places, losses = zip(*points or [(0.0, float("nan"))], strict=True)
        axes.plot(places, losses, marker="o", markersize=3, label=name)
    axes.set_xlabel("seconds since both began")
    axes.set_ylabel("validation loss (nats per byte)")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = parser_of(__doc__, peers=4, mbit=20, seconds=140, picture="home.png")
    options = parser.parse_args()
    rows = trained(options.peers, options.mbit, options.seconds)
    curves = {
        f"{row['mode']}, {row['codec']}: {row['rounds']} rounds": row["curve"] for row in rows
    }
    title = f"{options.peers} peers, lines of {options.mbit} Mbit/s"
    draw(Path(options.picture), curves, title)
    publish("home-demo", rows, COLUMNS, settings=vars(options))
    say(f"picture: {options.picture}")


if __name__ == "__main__":
    main()
