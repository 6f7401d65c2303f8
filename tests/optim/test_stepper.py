"""Steps on background threads, and threads that wait for them."""

import threading

import torch

from atom.graph.ir import ParameterLayout
from atom.optim.adamw import AdamW
from atom.optim.stepper import Stepper
from tests.manual_clock import ManualClock
from tests.one_step import allocate_store, take_step

STEPS, LAYOUT = 100, ParameterLayout.of({"matrix": (64, 64)})


def test_another_thread_may_wait_while_steps_begin() -> None:
    """A digest in the background does, while the worker begins the next one."""
    optimizer = AdamW()
    store, other = (allocate_store(optimizer, LAYOUT) for _ in range(2))
    stepper, gradient = Stepper(store, optimizer, ManualClock()), torch.ones(64 * 64)
    failures, done = list[RuntimeError](), threading.Event()

    def wait_all_the_time() -> None:
        try:
            while not done.is_set():
                stepper.wait()
        except RuntimeError as failure:
            failures.append(failure)

    waiter = threading.Thread(target=wait_all_the_time)
    waiter.start()
    for step in range(1, STEPS + 1):
        stepper.begin(gradient, 1e-3, step)
        take_step(optimizer, other, gradient, 1e-3, step)
    done.set()
    waiter.join()
    assert failures == []
    stepper.wait()
    assert torch.equal(store.master, other.master), "each waited for the one before"
