"""What lies between a program's sub-models, by name and as a schedule sees it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atom.graph.ir import Program
from atom.swap.crossing import Crossing


@dataclass(frozen=True)
class NamedCrossing:
    """Values that one sub-model makes in one piece of memory, or the gradient of one of them."""

    crossing: Crossing
    names: tuple[str, ...]


def crossings_of(program: Program) -> tuple[NamedCrossing, ...]:
    """In the order in which they are made. Without batch entries, the loss, and what is the same
    in every micro-batch.

    Raises: ValueError for a program that does not say what its values look like.
    """
    users: dict[str, list[int]] = {}
    for part in program.sub_models:
        for name in part.inputs:
            users.setdefault(name, []).append(part.index)
    found: list[NamedCrossing] = []
    for part in program.sub_models:
        together: dict[str, list[str]] = {}
        for name in part.outputs:
            if name in users and name not in program.shared:
                if name not in program.values:
                    raise ValueError(f"the program does not say what {name} looks like")
                memory = program.values[name].memory
                together.setdefault(memory or f"{name} alone", []).append(name)
        for names in together.values():
            found += _crossings(program, part.index, names, users)
    return tuple(found)


def _crossings(
    program: Program, made_by: int, names: Sequence[str], users: Mapping[str, Sequence[int]]
) -> list[NamedCrossing]:
    """Of values that share memory. That moves as one; their gradients share nothing."""
    specs = [program.values[name] for name in names]
    value_bytes = max(spec.memory_bytes for spec in specs) or sum(s.size_bytes for s in specs)
    gradients = [spec.size_bytes if spec.needs_grad else 0 for spec in specs]
    if len(names) == 1:
        used_by = tuple(users[names[0]])
        return [NamedCrossing(Crossing(made_by, used_by, value_bytes, gradients[0]), tuple(names))]
    union = tuple(sorted({user for name in names for user in users[name]}))
    return [
        NamedCrossing(Crossing(made_by, union, value_bytes, 0), tuple(names)),
        *(
            NamedCrossing(Crossing(made_by, tuple(users[name]), 0, size), (name,))
            for name, size in zip(names, gradients, strict=True)
        ),
    ]
