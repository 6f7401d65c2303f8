"""Which sub-model takes a value between sub-models first, and which last: when it may go."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from atom.graph.ir import Program
from atom.swap.segment import MicroBatch


class ValueLifetimes:
    """Of one program: lets go of what nobody will take any more."""

    def __init__(self, program: Program) -> None:
        users = _users(program)
        self._first_used = _names_by_user(users, 0)
        self._last_used = _names_by_user(users, -1)

    def forward_done(self, sub_model: int, batch: MicroBatch) -> None:
        """Without a backward to come, its last user was the last to take a value."""
        _release(batch, self._last_used[sub_model])

    def backward_done(self, sub_model: int, batch: MicroBatch) -> None:
        """The backward goes from the last user of a value to its first."""
        _release(batch, self._first_used[sub_model])


def _users(program: Program) -> dict[str, list[int]]:
    """Per value the sub-models that take it, ascending."""
    users: dict[str, list[int]] = {}
    for sub_model in program.sub_models:
        for name in sub_model.inputs:
            users.setdefault(name, []).append(sub_model.index)
    return users


def _names_by_user(
    users: Mapping[str, Sequence[int]], position: int
) -> defaultdict[int, list[str]]:
    """Per sub-model the values of which it is the first (position 0) or last (-1) user."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, indices in users.items():
        names[indices[position]].append(name)
    return names


def _release(batch: MicroBatch, names: Sequence[str]) -> None:
    for name in names:
        batch.values.pop(name, None)
