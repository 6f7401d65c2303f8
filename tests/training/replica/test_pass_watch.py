"""Which passes are looked at, and what is shown of them."""

import json

from atom.swap.schedule import Backward, Forward, GradientOut, Load, OptimizerStep
from atom.training.replica.passes import LOOK_S, PassWatch
from tests.manual_clock import ManualClock


def watched(watch: PassWatch, at_s: float = 0.0, sound: bool = True) -> bool:
    """One pass of 4 s; was it recorded?"""
    observer = watch.begin()
    events = [Load(0, 0), Forward(0, 0), Backward(0, 0), GradientOut(0)]
    if observer is not None:
        for start_s, event in enumerate(events):
            observer(event, at_s + start_s, at_s + start_s + 1)
    if sound:
        watch.end(["all"])
    return observer is not None


def test_one_pass_now_and_then_is_recorded() -> None:
    clock = ManualClock()
    watch = PassWatch(clock)
    assert watch.figures() is None
    for _ in range(2):
        assert [watched(watch) for _ in range(3)] == [True, False, False]
        clock.advance(LOOK_S)
    figures = watch.figures()
    assert figures is not None
    assert (figures["pass_seconds"], figures["computing"]) == (4.0, 0.5)


def test_who_asks_gets_the_next_sound_pass_to_begin() -> None:
    watch = PassWatch(ManualClock())
    watched(watch)
    watch.begin()  # a pass is under way
    ticket = watch.ask()
    watch.end(["all"])
    assert watch.trace(ticket, "run") == ("", "")
    assert watched(watch)
    trace, summary = watch.trace(ticket, "run")
    names = {event["name"] for event in json.loads(trace)["traceEvents"]}
    assert {"load all", "forward all, micro-batch 0"} <= names
    assert summary.startswith("the device computes 50.0% of 4.000 s")
    assert not watched(watch), "once is enough"
    assert watch.trace(ticket, "run")[0] == trace
    ticket = watch.ask()
    assert watched(watch, sound=False)
    assert watch.trace(ticket, "run") == ("", "")
    assert watched(watch)
    assert watch.trace(ticket, "run")[0]


def test_the_optimizers_work_under_a_pass_is_part_of_it() -> None:
    watch = PassWatch(ManualClock())
    watch.stepped(OptimizerStep(0), 0.0, 5.0)
    watch.stepped(OptimizerStep(1), 9.0, 10.5)
    watched(watch, at_s=10.0)
    trace, _ = watch.trace(0, "run")
    shown = [event for event in json.loads(trace)["traceEvents"] if event["ph"] == "X"]
    steps = [event for event in shown if event["cat"] == "optimizer"]
    assert [(event["args"]["sub_model"], event["ts"]) for event in steps] == [(1, 0.0)]
