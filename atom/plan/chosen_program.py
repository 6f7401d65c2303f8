"""From a choice to the program that it means."""

from atom.graph.ir import Program
from atom.graph.program import build_program
from atom.graph.traced import Graph
from atom.plan.choice import Choice


def chosen_program(graph: Graph, choice: Choice) -> Program:
    """`graph`, cut and printed as chosen. Raises: ModelError if the choice is for another graph."""
    return build_program(graph.remembering() if choice.remembers else graph, ends=choice.ends)
