"""docs/swap.md's table of host memory by optimizer, state and update rule is what plans reckon."""

from functools import cache
from pathlib import Path

import pytest

from atom.base.errors import ConfigError
from atom.config.load import parse_run_text
from atom.config.run_file import RunFile
from atom.daemon.fitting.device_choice import most_held, peer_bytes, replica_arenas, room_for
from atom.graph.ir import ParameterLayout
from atom.models.gpt3 import GPT2_VOCABULARY, GPT3Config, parameter_shapes

PAGE = Path(__file__).parents[3] / "docs" / "swap.md"
RUN = """
run = {{ name = "reckoned" }}
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


def reckoned(optimizer: str, state: str, update: str, codec: str) -> int:
    """Bytes, with gradients in the fewest bits that go with the codec."""
    gradients = "float32" if (update, codec) == (EVERY, "int4") else "bfloat16"
    run = RUN.format(
        optimizer=optimizer, state=state, gradients=gradients, update=update, codec=codec
    )
    return peer_bytes(parse_run_text(run), layout())


def row(optimizer: str, state: str) -> str:
    cells = []
    for update, codec in COLUMNS:
        if optimizer == "muon" and update == EVERY:
            cells.append("refused")
            continue
        need_bytes = reckoned(optimizer, state, update, codec)
        each = need_bytes / layout().total_elements
        cells.append(f"{each:.1f}: {need_bytes / 1e9:.0f} GB")
    return f"| `{optimizer}`, `{state}` | {' | '.join(cells)} |"


@pytest.mark.parametrize(("optimizer", "state"), ROWS)
def test_the_page_says_what_a_plan_reckons(optimizer: str, state: str) -> None:
    assert row(optimizer, state) in PAGE.read_text().splitlines()


def test_seven_billion_train_in_eighty_gigabytes_or_with_local_steps_in_114() -> None:
    """When the last fails, the page has something better to say."""
    assert reckoned("adamw-8bit", "split", EVERY, "bfloat16") <= 80e9
    least = min(reckoned(*each, LOCAL, codec) for each in ROWS for codec in ("bfloat16", "int4"))
    assert 80e9 < least < 114.5e9


PARTS = '{ optimizer_state = "parts" }'


def in_parts(optimizer: str = "adamw", state: str = "split", update: str = PARTS) -> RunFile:
    numbers = {"gradients": "bfloat16", "codec": "bfloat16"}
    return parse_run_text(RUN.format(optimizer=optimizer, state=state, update=update, **numbers))


@pytest.mark.parametrize("state", ["exact", "split", "half"])
def test_the_page_says_what_parts_take(state: str) -> None:
    """Of an undivided run, and of 1 or 2, 4, 8 and 16 peers."""
    of_peers = [(EVERY, 1), *((PARTS, peers) for peers in (1, 2, 4, 8, 16))]
    runs = [(in_parts(state=state, update=update), peers) for update, peers in of_peers]
    sizes = [peer_bytes(run, layout(), most_held(run, layout(), peers)) for run, peers in runs]
    assert sizes.pop(1) == sizes[1]
    cells = [f"{size / layout().total_elements:.1f}: {size / 1e9:.0f} GB" for size in sizes]
    assert f"| `{state}` in parts | {' | '.join(cells)} |" in PAGE.read_text().splitlines()


def test_of_eight_peers_each_has_a_quarter_of_the_moments() -> None:
    """Two of them hold each part. How many parts there is room for follows from the same sum."""
    run, each = in_parts(), most_held(in_parts(), layout(), 8)
    assert each == 15
    whole, some = (dict(replica_arenas(run, layout(), held)) for held in (None, each))
    for name in ("optimizer's exp_avg", "optimizer's exp_avg_sq", "low halves"):
        assert some[name] / whole[name] == pytest.approx(1 / 4, rel=1e-2)
    assert some["high halves"] == whole["high halves"]
    assert room_for(run, layout(), peer_bytes(run, layout(), each)) == each
    assert room_for(run, layout(), peer_bytes(run, layout(), each) - 1) == each - 1
    assert room_for(run, layout(), 2 * peer_bytes(run, layout())) == 60
    assert room_for(run, layout(), 0) == 0


@pytest.mark.parametrize("optimizer", ["adamw-8bit"])
def test_a_state_that_has_no_parts_is_refused(optimizer: str) -> None:
    with pytest.raises(ConfigError, match="its state has no parts"):
        peer_bytes(in_parts(optimizer), layout())
