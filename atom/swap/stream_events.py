"""Events that order CUDA streams, one for each slot of something."""

import torch


def event_of(events: dict[int, torch.cuda.Event], slot: int) -> torch.cuda.Event:
    """The slot's, made when first asked for."""
    if slot not in events:
        # Blocking: a host thread that waits for it sleeps instead of burning a core.
        events[slot] = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    return events[slot]
