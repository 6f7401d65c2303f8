"""Both modes side by side on home lines: the same model, text and seconds, and a picture of it.

    python benchmarks/demo_home.py --picture home.png
    python benchmarks/demo_home.py --peers 4 --mbit 20 --seconds 140

Two swarms of real daemons train a GPT of 0.8 million parameters on the text of Python's standard
library, at the same time on this machine, each peer in a network namespace of its own on a line of
`--mbit` in both directions. One swarm runs `every-step` with float32, the other `local-steps` with
int4 and 30 steps of each peer a round. The picture shows validation loss over the seconds since
both began. Needs root, `ip` and `tc`.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from home_world import homes, settle, swarm_in
from picture import draw
from sides import machine, positive, publish
from swarm_of_processes import Swarm, gather

SEQUENCES, INNER_STEPS = 8, 30
RUN = """\
[run]
name = "{name}"
seed = 5

[model]
family = "gpt3"
layers = 4
heads = 4
model_dim = 128
sequence_tokens = 64
precision = "float32"

[data]
source = "python-stdlib"
tokenizer = "bytes"
max_bytes = "1 MB"
validation_fraction = 0.05

[batch]
global_sequences = {batch}
micro_batch_sequences = {sequences}

[optimizer]
learning_rate = 2e-3
clip_norm = 1.0

{update}
[swarm]
grace_seconds = 2
codec = "{codec}"

[snapshot]
every_rounds = 1000

[validation]
every_rounds = {validates}
batches = 4
"""
UPDATE = f"""\
[update]
rule = "local-steps"
inner_sequences = {SEQUENCES}
"""


@dataclass(frozen=True)
class Mode:
    """How one of the swarms trains."""

    name: str
    codec: str
    update: str
    steps: int
    """Of each peer between two rounds."""
    validates: int
    """Every so many rounds."""

    def run_text(self, peers: int) -> str:
        return RUN.format(
            name=self.name, batch=SEQUENCES * self.steps * peers, sequences=SEQUENCES,
            update=self.update, codec=self.codec, validates=self.validates,
        )  # fmt: skip


MODES = (
    Mode("every-step", "float32", "", 1, 5),
    Mode("local-steps", "int4", UPDATE, INNER_STEPS, 1),
)


@dataclass(frozen=True)
class Outcome:
    """What a swarm's founder saw."""

    mode: Mode
    rounds: Sequence[dict[str, Any]]
    began: float

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Seconds since the beginning, validation loss."""
        told = [event for event in self.rounds if "validation_loss" in event]
        return [(event["time"] - self.began, event["validation_loss"]) for event in told]

    def row(self) -> tuple[str, ...]:
        seconds, loss = self.curve[-1] if self.curve else (0.0, float("nan"))
        sequences = sum(event["sequences"] for event in self.rounds)
        sent_bytes = sum(event.get("sent_bytes", 0) for event in self.rounds)
        return (
            self.mode.name, self.mode.codec, f"{len(self.rounds)}", f"{sequences:,}",
            f"{sent_bytes / 1e6:.1f}", f"{loss:.3f}", f"{seconds:.0f}",
        )  # fmt: skip


def trained(peers: int, mbit: int, seconds: int) -> list[Outcome]:
    """Both swarms, at the same time for so long."""
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
            time.sleep(1.0)  # they train on their own: nothing to wait on but time
            assert all(peer.exit_code is None for swarm in swarms for peer in swarm.peers)
        both = zip(MODES, swarms, strict=True)
        return [Outcome(mode, swarm.founder.rounds, began) for mode, swarm in both]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, usual in {"peers": 4, "mbit": 20, "seconds": 140}.items():
        parser.add_argument(f"--{name}", type=positive, default=usual)
    parser.add_argument("--picture", type=Path, default=Path("home.png"))
    options = parser.parse_args()
    outcomes = trained(options.peers, options.mbit, options.seconds)
    curves = {
        f"{outcome.mode.name}, {outcome.mode.codec}: {len(outcome.rounds)} rounds": outcome.curve
        for outcome in outcomes
    }
    title = f"{options.peers} peers, lines of {options.mbit} Mbit/s"
    draw(options.picture, curves, title, "seconds since both began")
    titles = "mode", "codec", "rounds", "sequences", "founder's upload, MB", "loss", "at second"
    body = {
        "benchmark": "demo_home",
        "machine": machine(),
        "settings": {"peers": options.peers, "mbit": options.mbit, "seconds": options.seconds},
        "curves": {outcome.mode.name: outcome.curve for outcome in outcomes},
    }
    publish(titles, [outcome.row() for outcome in outcomes], body)
    sys.stderr.write(f"picture: {options.picture}\n")


if __name__ == "__main__":
    main()
