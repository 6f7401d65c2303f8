"""Which loss AdamW, LAMB and LARS reach with a batch many times as large, on the same tokens.

A small GPT is trained in one process, with the real optimizers: one step on the whole batch, as
`rule = "every-step"` takes it. Each optimizer's rate is found at the base batch, by a coarse sweep.
With the large batch there are fewer steps, and the rate is left as it is (none), or scaled: by the
root of the batches' ratio (square root), by the ratio (linear), or, to see whether it should have
fallen, by one over the root. All rows: warm-up over the first tenth of the steps, then a cosine
down to a tenth of the rate; clipping at 1, a decay of 0.1.

    python benchmarks/large_batch.py
    python benchmarks/large_batch.py --times 2 4 8 16 32 --scalings "square root"
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from parity_model import Size, drawn, gradients, text, validation_loss
from sides import machine, positive, publish

from atom.base.clock import BootClock
from atom.optim.adamw import AdamW
from atom.optim.clipping import clip_coefficient, gradient_norm
from atom.optim.layerwise import LAMB, LARS
from atom.optim.optimizer import Optimizer, optimizer_state
from atom.optim.rate import RateSettings, learning_rate
from atom.optim.stepper import Stepper
from atom.swap.host_store import HostStore
from atom.swap.state_form import StateForm

CLIP_NORM = 1.0
OPTIMIZERS: dict[str, type[Optimizer]] = {"adamw": AdamW, "lamb": LAMB, "lars": LARS}
RATES = {
    "adamw": (2e-3, 4e-3, 8e-3, 16e-3),
    "lamb": (5e-3, 1e-2, 2e-2, 4e-2),
    "lars": (8.0, 16.0, 32.0, 64.0),
}
"""Of the sweep at the base batch."""
SCALINGS = {"1 / square root": -0.5, "none": 0.0, "square root": 0.5, "linear": 1.0}
"""Powers of the ratio of the batches."""


@dataclass(frozen=True)
class Row:
    optimizer: str
    batch: int
    """Sequences per step."""
    scaling: str
    rate: float


@dataclass(frozen=True)
class Setting:
    """What all rows have in common."""

    size: Size
    sequences: int
    """In all."""
    seed: int


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--optimizers", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS)
    )
    parser.add_argument("--times", nargs="+", type=positive, default=[8])
    parser.add_argument("--scalings", nargs="+", choices=list(SCALINGS), default=list(SCALINGS))
    for name, usual in {
        "batch": 12, "steps": 1200, "layers": 2, "width": 64, "seed": 1,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=positive, default=usual)
    return parser.parse_args()


def trained(setting: Setting, row: Row) -> float:
    """The validation loss at the end."""
    layout, made = setting.size.layout, OPTIMIZERS[row.optimizer]()
    state = optimizer_state(made, layout, StateForm.EXACT)
    store = HostStore.allocate(layout, torch.float32, optimizer_state=state)
    generator = torch.Generator().manual_seed(setting.seed)
    for spec in layout.specs:
        value = setting.size.first_value(spec.name, spec.shape, generator)
        store.write_weights(spec.name, value)
    stepper, steps = Stepper(store, made, BootClock()), setting.sequences // row.batch
    rates = RateSettings(row.rate, row.rate / 10, steps // 10, "cosine", steps)
    for step in range(1, steps + 1):
        batch = drawn(text()[0], (1, row.batch), generator)
        mean = gradients(setting.size, store.master[None], *batch)[1][0]
        norm = gradient_norm(mean)
        coefficient = clip_coefficient(norm, CLIP_NORM)
        stepper.begin(mean, learning_rate(rates, step), step, coefficient)
        stepper.wait()
    return validation_loss(setting.size, store.master)


def measured(setting: Setting, row: Row) -> float:
    """As `trained`; inf if the loss was none. Tells of it."""
    began = time.monotonic()
    try:
        loss = trained(setting, row)
    except ValueError:  # a gradient's norm that is no number
        loss = math.inf
    loss = loss if math.isfinite(loss) else math.inf
    took = time.monotonic() - began
    sys.stderr.write(f"{row}: {loss:.4f}, {took:.0f} s\n")
    return loss


def best(losses: Mapping[Row, float], optimizer: str) -> Row:
    """Of an optimizer's rows so far."""
    return min((row for row in losses if row.optimizer == optimizer), key=losses.__getitem__)


def compared(
    setting: Setting,
    optimizers: Sequence[str],
    batch: int,
    times: Sequence[int],
    scalings: Sequence[str],
) -> tuple[dict[Row, float], list[Row]]:
    """Losses of all rows, and those of the base batch that are the best of an optimizer's."""
    sweep = [Row(name, batch, "base", rate) for name in optimizers for rate in RATES[name]]
    losses = {row: measured(setting, row) for row in sweep}
    bases = [best(losses, name) for name in optimizers]
    for base in bases:
        for more in times:
            for scaling in scalings:
                rate = base.rate * more ** SCALINGS[scaling]
                row = Row(base.optimizer, batch * more, scaling, rate)
                losses[row] = measured(setting, row)
    return losses, bases


def main() -> None:
    o = arguments()
    setting = Setting(Size(o.layers, o.width), o.steps * o.batch, o.seed)
    losses, bases = compared(setting, o.optimizers, o.batch, o.times, o.scalings)
    reference = losses[bases[0]]
    table = [
        (row.optimizer, str(row.batch), str(setting.sequences // row.batch), row.scaling,
         f"{row.rate:.3g}", f"{loss:.4f}", f"{100 * (loss / reference - 1):+.1f} %",
         "base" if row in bases else "")
        for row, loss in losses.items()
    ]  # fmt: skip
    body: dict[str, Any] = {
        "benchmark": "large_batch",
        "machine": machine(),
        "parameters": setting.size.layout.total_elements,
        "settings": vars(o),
        "rows": [{**vars(row), "validation_loss": loss} for row, loss in losses.items()],
    }
    titles = ("optimizer", "batch", "steps", "scaling", "rate", "validation loss", "beside", "")
    publish(titles, table, body)


if __name__ == "__main__":
    main()
