"""A run's model as it is validated: without what is random in training."""

from collections.abc import Callable, Mapping
from typing import Any

from atom.base.errors import ModelError
from atom.daemon.model.recipe import Recipe, trace_run
from atom.graph.traced import Graph, bind, is_random, source_line, with_nested


def evaluation_graph(recipe: Recipe, note: Callable[[str], None]) -> Graph | None:
    """None: it is the training graph, or that has to do, which is noted: it draws no random
    numbers, and in evaluation mode the model is none that can be validated.

    Raises: ModelError if validation would be random.
    """
    try:
        graph = _in_evaluation_mode(recipe)
    except ModelError as problem:
        if _draws(recipe.graph):
            raise
        note(f"validation runs in training mode: {problem.message}")
        return None
    # Not only dropout depends on the mode: smoothed labels or an extra loss may, too.
    return None if graph.graph_hash == recipe.graph.graph_hash else graph


def _in_evaluation_mode(recipe: Recipe) -> Graph:
    """Raises: ModelError if it draws random numbers, uses other parameters, or has no loss."""
    graph = trace_run(recipe.run, recipe.source, training=False)
    if place := _draws(graph):
        raise ModelError(
            f"validation would be random: the model draws numbers at {place}",
            "make it depend on self.training, as nn.Dropout does, or remove [validation]",
        )
    if graph.layout != recipe.graph.layout:
        raise ModelError(
            "in evaluation mode the model uses its parameters in another way",
            "use the same ones, in the same order, in both modes, or remove [validation]",
        )
    return graph


def _draws(graph: Graph) -> str:
    """Where the graph draws random numbers; empty: nowhere."""
    for call in graph.calls:
        for node in with_nested(call):
            if is_random(node) and not _drops_nothing(bind(node)):
                return source_line(node) or node.name
    return ""


def _drops_nothing(arguments: Mapping[str, Any]) -> bool:
    """Dropout in evaluation mode, or with probability 0; attention's is 0 when left out."""
    if arguments.get("train") is False:
        return True
    otherwise = 0.0 if "query" in arguments else None
    return bool(arguments.get("p", arguments.get("dropout_p", otherwise)) == 0)
