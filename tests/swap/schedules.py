"""Hypothesis strategies: shapes with arrangements, and loads that a pass may find done."""

from hypothesis import strategies as st

from atom.swap.crossing import Crossing
from atom.swap.schedule import Arrangement, Shape


@st.composite
def shapes(draw: st.DrawFn, most_sub_models: int = 12) -> Shape:
    sub_models = draw(st.integers(1, most_sub_models))
    resident = draw(st.frozensets(st.integers(0, sub_models - 1)))
    kept = frozenset(s for s in resident if draw(st.booleans()))
    offloaded = draw(st.frozensets(st.integers(0, sub_models - 1)))
    arrangement = Arrangement(draw(st.integers(2, 6)), resident, kept, offloaded, 2)
    return Shape(sub_models, draw(st.integers(1, 5)), arrangement, draw(crossings(sub_models)))


@st.composite
def crossings(draw: st.DrawFn, sub_models: int) -> tuple[Crossing, ...]:
    """Draw values from each sub-model to the next, and values that skip sub-models."""
    sizes = st.integers(0, 9)
    plain = [Crossing(s, (s + 1,), draw(sizes), draw(sizes)) for s in range(sub_models - 1)]
    makers = draw(st.lists(st.integers(0, max(0, sub_models - 2)), max_size=3))
    skips = (
        [
            Crossing(s, tuple(sorted(users)), draw(sizes), draw(sizes))
            for s in makers
            if (users := draw(st.sets(st.integers(s + 1, sub_models - 1), max_size=3)))
        ]
        if sub_models > 1
        else []
    )
    return (*plain, *skips)


@st.composite
def shapes_with_loaded(draw: st.DrawFn, most_sub_models: int = 12) -> tuple[Shape, frozenset[int]]:
    """A shape, and sub-models that may be in their slots: at most one per slot."""
    shape = draw(shapes(most_sub_models))
    held = draw(st.sets(st.integers(0, shape.sub_models - 1)))
    return shape, frozenset({shape.slot_of(s): s for s in held}.values())
