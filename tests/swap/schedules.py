"""Hypothesis strategies: shapes with arrangements, and what may be loaded when a pass begins."""

from hypothesis import strategies as st

from atom.swap.arrangement import Arrangement
from atom.swap.schedule import Shape


@st.composite
def shapes(draw: st.DrawFn, most_sub_models: int = 12) -> Shape:
    sub_models = draw(st.integers(1, most_sub_models))
    resident = draw(st.frozensets(st.integers(0, sub_models - 1)))
    kept = frozenset(s for s in resident if draw(st.booleans()))
    arrangement = Arrangement(draw(st.integers(2, 6)), resident, kept)
    return Shape(sub_models, draw(st.integers(1, 5)), arrangement)


@st.composite
def shapes_with_loaded(draw: st.DrawFn, most_sub_models: int = 12) -> tuple[Shape, frozenset[int]]:
    """A shape, and sub-models that may be in their slots: at most one per slot."""
    shape = draw(shapes(most_sub_models))
    held = draw(st.sets(st.integers(0, shape.sub_models - 1)))
    return shape, frozenset({shape.slot_of(s): s for s in held}.values())
