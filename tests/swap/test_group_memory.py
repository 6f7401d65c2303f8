"""Values between sub-models of a group fit the estimated memory, however fast its devices are."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from schedules import shapes
from test_timeline import durations_for

from atom.swap.crossing import Crossing, held_bytes
from atom.swap.schedule import Backward, Forward, Shape
from atom.swap.timeline import Span, Timeline, group_pass, simulate

Held = tuple[int, float, float, set[tuple[int, int]]]
"""Bytes on a device, from when until when, and the sub-models and micro-batches that touch it."""


def held_on(device: int, on: tuple[int, ...], shape: Shape, pass_: Timeline) -> Iterator[Held]:
    """Yield the values on a device, following each crossing to its last use."""
    spans = {span.event: span for span in pass_.spans if span.device == on[span.sub_model]}
    for each in shape.crossings:
        users = [user for user in each.used_by if on[user] == device]
        for c in range(shape.micro_batches):
            made_s = spans[Forward(each.made_by, c)].end_s
            if users:
                at = {(s, c) for s in (each.made_by, *users)}
                yield each.value_bytes, made_s, spans[Backward(users[0], c)].end_s, at
            for earlier, later in pairwise((each.made_by, *each.used_by)):
                if on[earlier] == device:
                    since, until = (spans[Backward(s, c)].end_s for s in (later, earlier))
                    yield each.gradient_bytes, since, until, {(earlier, c), (later, c)}


def at_work(device: int, pass_: Timeline) -> list[Span]:
    return [span for span in pass_.lane("compute") if span.device == device]


@given(shapes(most_sub_models=8), st.integers(2, 4), st.data())
def test_no_device_holds_more_than_is_reckoned(
    shape: Shape, devices: int, data: st.DataObject
) -> None:
    """The assignment of sub-models to devices is random. A gradient comes back for each value."""
    stays = replace(shape.arrangement, offloaded=frozenset())
    trained = (replace(each, gradient_bytes=each.gradient_bytes + 1) for each in shape.crossings)
    shape = replace(shape, arrangement=stays, crossings=tuple(trained))
    drawn = [data.draw(st.integers(0, devices - 1)) for _ in range(shape.sub_models)]
    on = tuple(sorted(set(drawn)).index(each) for each in drawn)
    pass_ = simulate(group_pass(shape, on), shape, data.draw(durations_for(shape.sub_models)), on)
    for device in sorted(set(on)):
        sizes = shape.crossings, frozenset[int](), shape.sub_models, shape.micro_batches
        most = held_bytes(*sizes, on, device)
        held = list(held_on(device, on, shape, pass_))
        for span in at_work(device, pass_):
            own = span.sub_model, span.micro_batch
            now = sum(
                size
                for size, since, until, touched in held
                if since <= span.start_s < until and own not in touched
            )
            assert now <= most


def test_what_is_for_another_device_counts_until_the_next_visit() -> None:
    value, gradient = Crossing(0, (1,), 8, 0), Crossing(0, (1,), 0, 8)
    for device, crossing in enumerate((value, gradient)):
        assert held_bytes((crossing,), frozenset(), 2, 3, (0, 1), device) == 24
