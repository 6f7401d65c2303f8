"""Members of a measured swarm, a process each: they meet, work in step, send what they found."""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

PATIENCE_S = 120.0

Member = Callable[..., None]
"""`member(rank, job, parent, gate)`: a process's whole life. Sends its contact to the parent, gets
everybody's, sends what it found, and waits at the gate, as all do, before it ends."""


def found_by(member: Member, job: Any, members: int) -> list[Any]:
    """What each sent, by rank. Raises: RuntimeError if a member ends early."""
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(members)
    pipes = [context.Pipe() for _ in range(members)]
    processes = [
        context.Process(target=member, args=(rank, job, child, gate))
        for rank, (_, child) in enumerate(pipes)
    ]
    for process, (_, child) in zip(processes, pipes, strict=True):
        process.start()
        child.close()
    try:
        contacts = _from_each([parent for parent, _ in pipes])
        for parent, _ in pipes:
            parent.send(contacts)
        found = _from_each([parent for parent, _ in pipes])
    except EOFError:
        for process in processes:
            process.terminate()  # they wait for who is gone
        raise RuntimeError("a member ended early") from None
    finally:
        for process in processes:
            process.join(PATIENCE_S)
    return found


def _from_each(pipes: Sequence[Connection]) -> list[Any]:
    """What each sends next, whoever is first. Raises: EOFError as soon as one has gone."""
    received: dict[int, Any] = {}
    while len(received) < len(pipes):
        waiting = [pipe for at, pipe in enumerate(pipes) if at not in received]
        for pipe in wait(waiting):
            assert isinstance(pipe, Connection)
            received[pipes.index(pipe)] = pipe.recv()
    return [received[at] for at in range(len(pipes))]
