"""Balanced cuts: always legal, never more sub-models than needed, as even as can be."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.base.errors import DeviceError
from atom.graph.partition.balanced import LayerCost, balanced_cut, finest_cut, need_bytes


@st.composite
def chains(draw: st.DrawFn, most: int = 9) -> list[LayerCost]:
    """Layers that own a parameter each, and now and then share the first one's."""
    sizes = draw(st.lists(st.integers(0, 100), min_size=1, max_size=most))
    costs = []
    for index, size in enumerate(sizes):
        parameters = {f"p{index}": size}
        if draw(st.booleans()):
            parameters["p0"] = sizes[0]
        costs.append(
            LayerCost(
                name=f"layer {index}",
                parameters=parameters,
                input_bytes=draw(st.integers(0, 50)),
                output_bytes=draw(st.integers(0, 50)),
                working_bytes=draw(st.integers(0, 100)),
            )
        )
    return costs


def pieces(layers: list[LayerCost], cut: list[tuple[int, int]]) -> list[list[LayerCost]]:
    return [layers[first : last + 1] for first, last in cut]


def held_bytes(layers: list[LayerCost]) -> int:
    return sum({name: size for layer in layers for name, size in layer.parameters.items()}.values())


def every_cut(count: int) -> list[list[tuple[int, int]]]:
    cuts = []
    for size in range(count):
        for places in itertools.combinations(range(1, count), size):
            starts = [0, *places, count]
            cuts.append([(a, b - 1) for a, b in itertools.pairwise(starts)])
    return cuts


def rank(layers: list[LayerCost], cut: list[tuple[int, int]]) -> tuple[int, int]:
    return len(cut), max(held_bytes(piece) for piece in pieces(layers, cut))


@given(chains(), st.integers(0, 2000))
@settings(max_examples=150, deadline=None)
def test_as_good_as_trying_every_cut(layers: list[LayerCost], budget_bytes: int) -> None:
    alone = max(need_bytes([layer]) for layer in layers)
    if alone > budget_bytes:
        with pytest.raises(DeviceError):
            balanced_cut(layers, budget_bytes)
        return
    cut = balanced_cut(layers, budget_bytes)
    assert [index for a, b in cut for index in range(a, b + 1)] == list(range(len(layers)))
    assert all(need_bytes(piece) <= budget_bytes for piece in pieces(layers, cut))
    fitting = [
        other
        for other in every_cut(len(layers))
        if all(need_bytes(piece) <= budget_bytes for piece in pieces(layers, other))
    ]
    assert rank(layers, cut) == min(rank(layers, other) for other in fitting)


@given(chains())
@settings(max_examples=50, deadline=None)
def test_more_memory_never_means_more_sub_models(layers: list[LayerCost]) -> None:
    alone = max(need_bytes([layer]) for layer in layers)
    counts = [len(balanced_cut(layers, alone + extra)) for extra in (0, 100, 1000, 10**6)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_what_does_not_fit_is_named_with_need_and_budget() -> None:
    layers = [LayerCost("small", {"a": 10}), LayerCost("blocks.7", {"b": 2**30})]
    with pytest.raises(
        DeviceError, match=r"blocks\.7 needs 4\.0 GiB.*budget is 2\.0 GiB"
    ) as caught:
        balanced_cut(layers, 2 * 2**30)
    assert "micro-batches" in caught.value.hint


def test_even_pieces_beat_greedy_ones() -> None:
    layers = [LayerCost(str(index), {str(index): 10}) for index in range(4)]
    assert balanced_cut(layers, 4 * 30) == [(0, 1), (2, 3)]


def test_a_tied_parameter_is_counted_once() -> None:
    layers = [LayerCost("first", {"tied": 100}), LayerCost("last", {"tied": 100})]
    assert balanced_cut(layers, 400) == [(0, 1)]


def test_gradients_are_float32_whatever_the_precision() -> None:
    layers = [LayerCost("one", {"a": 100})]
    assert need_bytes(layers, element_bytes=4) == 2 * 100 + 2 * 100
    assert need_bytes(layers, element_bytes=2) == 2 * 100 + 2 * 200
    with pytest.raises(DeviceError):
        balanced_cut(layers, 599, element_bytes=2)
    assert balanced_cut(layers, 600, element_bytes=2) == [(0, 0)]


def test_finest() -> None:
    assert finest_cut(3) == [(0, 0), (1, 1), (2, 2)]
