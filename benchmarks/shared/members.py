"""Processes of a measured group: a process each, with a pipe to the parent."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

PATIENCE_S = 120.0

Member = Callable[..., None]
"""`member(rank, job, gate, parent)`: main function of a process.

The member sends its contact to the parent, receives all contacts, sends its results, and waits at
the gate for all others before it ends.
"""


@contextmanager
def spawned(
    target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[list[BaseProcess], list[Connection]]]:
    """Run `target` in a process per tuple of arguments; its last argument is a pipe.

    The context yields the processes and the other ends of the pipes, and kills all at its end.
    """
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in arguments]
    processes: list[BaseProcess] = [
        context.Process(target=target, args=(*own, theirs))
        for own, (_, theirs) in zip(arguments, pipes, strict=True)
    ]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()
        yield processes, [mine for mine, _ in pipes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def found_by(member: Member, job: Any, members: int) -> list[Any]:
    """Return the results of all members, by rank.

    Raises:
        RuntimeError: a member ended early.
    """
    gate = multiprocessing.get_context("spawn").Barrier(members)
    with spawned(member, [(rank, job, gate) for rank in range(members)]) as (processes, pipes):
        try:
            contacts = _from_each(pipes)
            for pipe in pipes:
                pipe.send(contacts)
            found = _from_each(pipes)
        except EOFError:
            raise RuntimeError("a member ended early") from None
        for process in processes:
            process.join(PATIENCE_S)
    return found


def _from_each(pipes: Sequence[Connection]) -> list[Any]:
    """Return the next object from each pipe, in any order of arrival.

    Raises:
        EOFError: a pipe was closed.
    """
    received: dict[int, Any] = {}
    while len(received) < len(pipes):
        waiting = [pipe for at, pipe in enumerate(pipes) if at not in received]
        for pipe in wait(waiting):
            assert isinstance(pipe, Connection)
            received[pipes.index(pipe)] = pipe.recv()
    return [received[at] for at in range(len(pipes))]
