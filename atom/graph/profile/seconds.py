"""What a profile says. Measured and assumed ones look the same."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles. An assumed figure has no spread: all three are equal."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """Of at least one sample."""
        if len(samples) == 1:
            return cls.exactly(samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)

    @classmethod
    def exactly(cls, value: float) -> "Spread":
        return cls(value, value, value)


@dataclass(frozen=True)
class OperationSeconds:
    """One call of the graph on one micro-batch; `backward_s` without a recomputed forward."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class LinkRates:
    """How fast flat buffers move between host and device, each way by itself."""

    load_bytes_per_s: Spread
    """Host to device: parameters."""
    gradient_bytes_per_s: Spread
    """Device to host, added to what is there where the device is the host itself."""


@dataclass(frozen=True)
class LayerProfile:
    """One layer on one micro-batch."""

    name: str
    forward_s: Spread
    backward_s: Spread
    """Without a recomputed forward; with the sums of parameters' gradients in float32."""
    parameter_bytes: int
    """As loaded, alignment included."""
    gradient_bytes: int
    """Float32, alignment included; frozen parameters have none."""
    working_bytes: int
    """The most in use while it runs besides parameters and their summed gradients, as reckoned."""


@dataclass(frozen=True)
class Profile:
    """What a graph costs on a device."""

    source: str
    """`measured`, or `assumed` for a named device that is not here."""
    device_name: str
    layers: tuple[LayerProfile, ...]
    operations: tuple[OperationSeconds, ...]
    """One per entry of `graph.calls`. Measured: a layer's calls share its seconds."""
    link: LinkRates
