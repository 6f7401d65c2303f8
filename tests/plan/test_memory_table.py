"""The table of host memory in docs/devices.md agrees with the bytes that plans compute."""

from functools import cache
from pathlib import Path

import pytest

from atom.config.load import parse_run_text
from atom.graph.ir import ParameterLayout
from atom.models.gpt3 import GPT2_VOCABULARY, GPT3Config, parameter_shapes
from atom.plan.footprint import Footprint
from atom.training.run_optimizer import ReplicaTerms

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"
RUN = """
run = {{ name = "estimated" }}
data = {{ source = "python-stdlib" }}
batch = {{ global_sequences = 8, micro_batch_sequences = 1 }}
model = {{ family = "gpt3", size = "6.7b", precision = "bfloat16", vocabulary_size = 50304 }}
optimizer.name = "{optimizer}"
optimizer.state = "{state}"
optimizer.gradients = "{gradients}"
optimizer.learning_rate = 1
update = {update}
swarm = {{ codec = "{codec}" }}
"""
EVERY = '{ rule = "every-step" }'
LOCAL = '{ rule = "local-steps", inner_sequences = 2 }'
COLUMNS = [(EVERY, "bfloat16"), (EVERY, "int4"), (LOCAL, "bfloat16"), (LOCAL, "int4")]
ROWS = [
    ("adamw", "exact"), ("adamw", "split"), ("adamw", "half"), ("adamw-8bit", "split"),
    ("muon", "split"), ("muon", "half"),
]  # fmt: skip


@cache
def layout() -> ParameterLayout:
    shapes = parameter_shapes(GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size="6.7b"))
    matrices = {name for name in shapes if name.startswith("blocks") and len(shapes[name]) == 2}
    return ParameterLayout.of(shapes, matrices)


def estimated(optimizer: str, state: str, update: str, codec: str) -> int:
    """Return the bytes, with gradients in the fewest bits that the codec allows."""
    gradients = "float32" if (update, codec) == (EVERY, "int4") else "bfloat16"
    run = RUN.format(
        optimizer=optimizer, state=state, gradients=gradients, update=update, codec=codec
    )
    terms = ReplicaTerms.of(parse_run_text(run), layout())
    return Footprint.of(terms, 0).host.total_bytes


def row(optimizer: str, state: str) -> str:
    cells = []
    for update, codec in COLUMNS:
        if optimizer == "muon" and update == EVERY:
            cells.append("refused")
            continue
        need_bytes = estimated(optimizer, state, update, codec)
        each = need_bytes / layout().total_elements
        cells.append(f"{each:.1f}: {need_bytes / 1e9:.0f} GB")
    return f"| `{optimizer}`, `{state}` | {' | '.join(cells)} |"


@pytest.mark.parametrize(("optimizer", "state"), ROWS)
def test_the_page_says_what_a_plan_estimates(optimizer: str, state: str) -> None:
    assert row(optimizer, state) in PAGE.read_text().splitlines()


def test_seven_billion_train_in_eighty_gigabytes_or_with_local_steps_in_114() -> None:
    """A failure of the last assertion means that the page can state a better figure."""
    assert estimated("adamw-8bit", "split", EVERY, "bfloat16") <= 80e9
    least = min(estimated(*each, LOCAL, codec) for each in ROWS for codec in ("bfloat16", "int4"))
    assert 80e9 < least < 114.5e9
