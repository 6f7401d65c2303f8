"""A schedule as steps: what is computed, and what is loaded meanwhile. Pure.

Read off the very list that the engine executes, so that a plan cannot say anything else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atom.swap.schedule import Backward, Drop, Event, Forward, GradientOut, Load, Shape


@dataclass(frozen=True)
class PassStep:
    """One sub-model computes all micro-batches; the next ones come in while it does."""

    sub_model: int
    forward: bool
    backward: bool
    """Both: the last sub-model, whose forward and backward take turns by micro-batch."""
    micro_batches: int
    loads: tuple[int, ...]
    """Sub-models whose load starts before this step computes."""
    waits: bool
    """Its own load is among them: nothing hides it."""
    slots: tuple[int | None, ...]
    """Per slot, the sub-model in it while this step computes (or on its way into it)."""
    gradient_out: bool


def pass_steps(
    schedule: Iterable[Event], shape: Shape, resident: Iterable[int] = ()
) -> list[PassStep]:
    """The steps of a pass, in order. `resident`: as the schedule was made with."""
    steps: list[PassStep] = []
    occupants: list[int | None] = [None] * shape.slots
    for sub_model in resident:
        occupants[shape.slot_of(sub_model)] = sub_model
    loads: list[int] = []
    visit: list[Forward | Backward] = []
    for event in schedule:
        match event:
            case Load(sub_model, slot):
                visit = _close(visit, loads, occupants, steps)
                occupants[slot] = sub_model
                loads.append(sub_model)
            case Drop(_, slot):
                visit = _close(visit, loads, occupants, steps)
                occupants[slot] = None
            case Forward() | Backward():
                if visit and visit[-1].sub_model != event.sub_model:
                    visit = _close(visit, loads, occupants, steps)
                visit.append(event)
            case GradientOut():
                visit = _close(visit, loads, occupants, steps, gradient_out=True)
    _close(visit, loads, occupants, steps)
    return steps


def _close(
    visit: Sequence[Forward | Backward],
    loads: list[int],
    occupants: Sequence[int | None],
    steps: list[PassStep],
    gradient_out: bool = False,
) -> list[Forward | Backward]:
    """Ends the visit, if one is open. Returns the next one: still empty."""
    if visit:
        sub_model = visit[0].sub_model
        steps.append(
            PassStep(
                sub_model=sub_model,
                forward=any(isinstance(event, Forward) for event in visit),
                backward=any(isinstance(event, Backward) for event in visit),
                micro_batches=len({event.micro_batch for event in visit}),
                loads=tuple(loads),
                waits=sub_model in loads,
                slots=tuple(occupants),
                gradient_out=gradient_out,
            )
        )
        loads.clear()
    return []
