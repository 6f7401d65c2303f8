"""Members of a measured swarm, a process each: they meet, work in step, send what they found."""

import multiprocessing
from collections.abc import Callable
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
        contacts = [parent.recv() for parent, _ in pipes]
        for parent, _ in pipes:
            parent.send(contacts)
        return [parent.recv() for parent, _ in pipes]
    except EOFError:
        raise RuntimeError("a member ended early") from None
    finally:
        for process in processes:
            process.join(PATIENCE_S)
