"""Where to cut a model into sub-models: pure arithmetic over a chain of operations."""

from atom.graph.partition.chain import (
    Chain,
    Machine,
    Operation,
    Partition,
    Terms,
    Value,
)
from atom.graph.partition.price import cost_of
from atom.graph.partition.solve import (
    Solver,
    find_partition,
    partition,
    smallest_device_bytes,
)

__all__ = [
    "Chain",
    "Machine",
    "Operation",
    "Partition",
    "Solver",
    "Terms",
    "Value",
    "cost_of",
    "find_partition",
    "partition",
    "smallest_device_bytes",
]
