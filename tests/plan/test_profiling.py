"""A daemon begins to train whatever its profile does: slow or impossible."""

from pathlib import Path

import pytest
import torch

from atom.base.errors import ModelError
from atom.graph.chain import Machine
from atom.graph.costs import measured
from atom.graph.costs.seconds import Profile, typical_graph
from atom.graph.ir import ParameterLayout
from atom.graph.trace import trace
from atom.graph.traced import Graph
from atom.models.gpt3 import GPT3Config, GPT3Source
from atom.optim.adamw import AdamW
from atom.optim.muon import Muon
from atom.optim.optimizer import Optimizer
from atom.plan import profiling
from atom.plan.profiling import (
    REPEATS,
    largest_layer_bytes,
    profile_of,
    profile_or_guess,
    step_elements_per_s,
)
from atom.swap.host_store import StateForm
from atom.training.run_optimizer import ReplicaTerms

CPU = torch.device("cpu")


def unheard(done: int, total: int) -> None:
    """Ignore the progress."""


@pytest.fixture(scope="module")
def graph() -> Graph:
    source = GPT3Source(
        GPT3Config(layers=2, heads=2, model_dim=16, sequence_tokens=8, vocabulary_size=32)
    )
    return trace(source.build(torch.float32), source.example_batch(1))


@pytest.fixture(autouse=True)
def _no_cache_nor_load_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(profiling, "others_share", lambda device: 0.0)
    monkeypatch.setattr(measured, "_MIN_SAMPLING_S", 0.0)


def test_a_profile_is_measured_once_and_kept(graph: Graph) -> None:
    notes: list[str] = []
    steps: list[tuple[int, int]] = []

    def told(done: int, total: int) -> None:
        steps.append((done, total))

    first = profile_or_guess(graph, CPU, notes.append, told)
    assert first.source == "measured"
    assert len(notes) == 1
    assert steps == [(done, len(steps) - 1) for done in range(len(steps))]
    assert len(steps) > 2, "of more than one layer it is told which"
    assert profile_or_guess(graph, CPU, notes.append, told) == first
    assert len(notes) == 1, "nothing to say about a kept one"
    assert steps[-1] == (len(steps) - 1, len(steps) - 1), "nor to wait for"


def test_what_would_take_long_is_estimated(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "PATIENCE_S", 0.0)
    notes: list[str] = []
    assert profile_or_guess(graph, CPU, notes.append, unheard).source == "assumed"
    assert "would take long" in notes[0]
    profile_of(graph, CPU, notes.append)
    assert "--assume" in notes[1], "for a plan it is measured nevertheless"


def test_memory_of_the_largest_layer() -> None:
    config = GPT3Config(8, 4, 256, sequence_tokens=8, vocabulary_size=64)
    source = GPT3Source(config)
    wide = trace(source.build(torch.float32), source.example_batch(1))
    block = (12 * 256**2 + 13 * 256) * 4
    need = largest_layer_bytes(wide, typical_graph(wide, CPU, Machine(1.0, 1.0)))
    assert 3 * block < need < 4 * block


@pytest.mark.parametrize(
    ("shares", "doubts", "noted"),
    [([0.1, 0.1], False, False), ([0.9, 0.0], True, True), ([0.0, 0.9], True, False)],
    ids=["idle", "busy before", "busy after"],
)
def test_a_measurement_beside_other_programs_is_doubted_until_they_rest(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, shares: list[float], doubts: bool, noted: bool
) -> None:
    seen = iter([*shares, 0.9, 0.0, 0.0, 0.0])
    monkeypatch.setattr(profiling, "others_share", lambda device: next(seen))
    notes: list[str] = []
    profiles = [profile_of(graph, CPU, notes.append) for _ in range(3)]
    assert profiles[0].doubtful is doubts
    assert any("other programs use 90%" in note for note in notes) is noted
    assert profiles[1] == profiles[0], "they still work: not repeated"
    assert not profiles[2].doubtful
    assert (profiles[2] != profiles[0]) is doubts, "repeated if it was doubtful"


def test_layers_that_do_not_run_on_made_up_inputs(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> Profile:
        raise RuntimeError("index out of range")

    monkeypatch.setattr(profiling, "measure_layers", fails)
    notes: list[str] = []
    assert profile_or_guess(graph, CPU, notes.append, unheard).source == "assumed"
    assert "index out of range" in notes[-1]
    with pytest.raises(ModelError, match="random inputs"):
        profile_of(graph, CPU, notes.append)


# --- the step's speed ---

SHAPES = {f"m{number}": (1024, 1024) for number in range(3)}
LAYOUTS = [ParameterLayout.of(SHAPES, set(list(SHAPES)[:count])) for count in range(4)]
"""Layouts in which none, one, two or all of the parameters are matrices."""


def terms(optimizer: Optimizer, layout: ParameterLayout) -> ReplicaTerms:
    return ReplicaTerms(layout, torch.float32, optimizer)


@pytest.fixture(autouse=True)
def _small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "SAMPLE_ELEMENTS", 6400)
    monkeypatch.setattr(profiling, "SAMPLE_MATRIX", (64, 256))


def test_the_median_of_the_later_steps_counts() -> None:
    durations = [9.0, *(float(n) for n in range(1, REPEATS + 1))]
    ticks = iter([tick for seconds in durations for tick in (100.0, 100.0 + seconds)])
    speed = step_elements_per_s(terms(AdamW(), LAYOUTS[3]), lambda: next(ticks))
    assert speed == pytest.approx(6400 / 3.0)


def test_it_is_really_run_in_half_precision_too() -> None:
    for form in StateForm:
        half = ReplicaTerms(LAYOUTS[0], torch.bfloat16, AdamW(), form)
        assert step_elements_per_s(half) > 0


def test_products_of_matrices_count_by_their_number() -> None:
    """A second for each step: twice as many matrices take twice as long."""
    one = Muon().products(LAYOUTS[1].specs[0])
    assert one == 5 * (4 * 1024**3 + 2 * 1024**3)
    assert [sum(map(Muon().products, each.specs)) for each in LAYOUTS] == [0, one, 2 * one, 3 * one]
    seconds = list[float]()
    for layout in LAYOUTS:
        ticks = iter(range(4 * (REPEATS + 1)))
        muon = terms(Muon(), layout)
        per_s = step_elements_per_s(muon, lambda ticks=ticks: float(next(ticks)))
        seconds.append(layout.total_elements / per_s)
    each = seconds[1] - seconds[0]
    assert seconds[0] == pytest.approx(LAYOUTS[0].total_elements / 6400)
    assert each > 0
    assert seconds[3] - seconds[0] == pytest.approx(3 * each)
