"""The least device memory in which a run's model can be trained: cut finely, always swapped."""

from functools import cache

import torch

from atom.config.load import parse_run_text
from atom.graph.costs.operation_chain import operation_chain
from atom.graph.partition import Machine, Terms, smallest_device_bytes
from atom.graph.profile.assumed import typical_graph
from atom.graph.trace import trace
from atom.models.gpt3 import GPT3Config
from atom.models.gpt3_source import GPT3Source


@cache
def tightest_memory(run_text: str) -> int | None:
    """In bytes; None for a model that is not of a family."""
    run = parse_run_text(run_text)
    if run.model.family is None:
        return None
    vocabulary = run.model.vocabulary_size or 256
    source = GPT3Source(GPT3Config.build(vocabulary_size=vocabulary, **run.model.shape()))
    batch = source.example_batch(run.batch.micro_batch_sequences)
    graph = trace(source.build(torch.float32), batch)
    profile = typical_graph(graph, torch.device("cpu"))
    terms = Terms(device_bytes=1, micro_batches=1, element_bytes=4)
    return smallest_device_bytes(
        operation_chain(graph, profile.operations), Machine(1e9, 1e9), terms
    )
