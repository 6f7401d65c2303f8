"""Progress: from any state, once messages get through and all lies and faults have ended, a round
is decided, as long as a quorum lives.
"""

from atom.swarm.chain.commit import Voter, is_quorum
from atom.training.round.events import Phase

from .actors import LONG_S, TICK_S, sight, voter
from .world import State, Step, World

TICKS = 12
"""Ticks of each peer within which a round is decided."""
_PATIENT = {"ballots": 99, "ticks": 0, "lies": 0, "crashes": 0, "restarts": 0, "losses": 0}


def progress_problem(world: World, state: State, silent: bool = False) -> str | None:
    """Return a message if no peer steps although a quorum of the newest head lives.

    Args:
        world: World of the state.
        state: State at which all faults end.
        silent: Whether the dead voters have been silent for the grace time.
    """
    state = state._replace(budget=state.budget._replace(**_PATIENT, leaves=0, chases=99))
    head = max((local.head for local in world.living(state)), key=lambda head: head.rank)
    if not is_quorum(head.voters, {voter(each.number, each.life) for each in world.living(state)}):
        return None
    for _ in range(TICKS):
        state = _delivered(world, state)
        if max(local.head.round for local in world.living(state)) > head.round:
            return None
        state = _ticked(world, state, silent)
    return "stuck: a quorum lives and decides nothing"


def _delivered(world: World, state: State) -> State:
    """Deliver everything, each letter to each receiver, until nothing changes."""
    for _ in range(200):
        step = next((each for each in world.steps(state) if each.move[1] != "tick"), None)
        if step is None:
            return state
        state = step.after
    return state


def _ticked(world: World, state: State, silent: bool) -> State:
    """Let each peer see the living ones; its timers expire, and exchanges without end break."""
    for number in [local.number for local in world.living(state)]:
        local = world.automaton.locals[state.locals[number]]
        seen: frozenset[Voter] = frozenset(
            voter(each.number, each.life)
            for each in world.living(state)
            if each.number != number and each.head == local.head
        )
        seconds = LONG_S if local.phase is Phase.PROMISED and local.attempt is None else TICK_S
        acts = [("tick", sight(local.head, seen, frozenset(), silent), seconds)]
        acts += [("fail",)] if local.phase is Phase.REDUCING else []
        for act in reversed(acts):
            step = world.step(state, number, act)
            state = step.after if step else state
        state = _delivered(world, state)
    return state


def decides(world: World, step: Step) -> str | None:
    """Return why no round follows a step, as a property of a search."""
    return progress_problem(world, step.after)
