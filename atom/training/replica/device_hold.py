"""A replica's memory on its device: given back while its owner wants the device, taken again later.

What is on the host stays: weights, moments, and what has been accumulated.
"""

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from atom.base.errors import AtomError, DeviceError
from atom.swap.device import Device
from atom.swap.device_slots import DeviceSlots
from atom.swap.engine import PassCancelled
from atom.swap.voided import is_out_of_memory


class DeviceTaken(AtomError):
    """The memory was given back, and somebody else has it now: try again later."""


class DeviceHold:
    """The slots of a replica's engines."""

    def __init__(self, device: Device, slots: DeviceSlots) -> None:
        self._device, self._slots = device, slots
        self._lock = threading.Lock()
        self._closed = False
        self._given_back = False

    @property
    def torch_device(self) -> torch.device:
        return self._device.torch_device

    def close(self, wait_s: float) -> bool:
        """From any thread: the memory is given back, as soon as nobody is `using` it.
        Returns whether that was within `wait_s`."""
        self._closed = True
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            self._give_back()
        finally:
            self._lock.release()
        return True

    def open(self) -> None:
        """It may be used again. From any thread."""
        self._closed = False

    def exchange(self, make: Callable[[], DeviceSlots]) -> None:
        """Other slots take the place of these, whose memory is free while `make` makes those, and
        theirs again if it raises. Between passes."""
        with self._lock:
            self._give_back()
            waiting = self._slots.boundary.host
            self._device.give_back_host(waiting)
            try:
                slots = make()
            except BaseException as failure:
                _let_go_of_half_made(failure)
                with suppress(DeviceError):  # then copies take a detour
                    self._device.take_again_host(waiting)
                raise
            self._slots = slots
            self._given_back = False
            if self._closed:
                self._give_back()

    @contextmanager
    def using(self) -> Iterator[None]:
        """Wraps a pass: within, the device has what it needs. Raises: PassCancelled while closed;
        DeviceTaken."""
        with self._lock:
            if self._closed:
                raise PassCancelled("the device is not to be used now")
            self._take_again()
            try:
                yield
            finally:
                if self._closed:
                    self._give_back()

    def _give_back(self) -> None:
        if self._given_back:
            return
        self._given_back = True
        self._slots.give_back(self._device)

    def _take_again(self) -> None:
        if not self._given_back:
            return
        self._given_back = False
        try:
            self._slots.take_again(self._device)
        except Exception as failure:
            self._give_back()
            if not is_out_of_memory(failure):
                raise
            raise DeviceTaken("another program has the device's memory") from failure


def _let_go_of_half_made(failure: BaseException | None) -> None:
    """An exception holds what the functions that it left have made, as long as anybody holds it."""
    while failure is not None:
        traceback.clear_frames(failure.__traceback__)
        failure = failure.__cause__ or failure.__context__
