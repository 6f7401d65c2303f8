"""What a profile says. Measured and assumed ones look the same."""

from dataclasses import dataclass

from atom.graph.chain import Machine


@dataclass(frozen=True)
class OperationSeconds:
    """One call of the graph on one micro-batch; `backward_s` without a recomputed forward."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class LayerProfile:
    """One layer on one micro-batch."""

    name: str
    forward_s: float
    backward_s: float
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
    link: Machine
