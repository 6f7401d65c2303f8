"""How fast the two sides of an optimizer's step are: the host, and a device beside it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepRates:
    """Measured, or reckoned. All in parameters per second."""

    host: float
    """That the host's threads update alone."""
    host_beside: float
    """The same while the link is busy both ways."""
    link: float
    """Whose gradient and state the link brings in while it brings the state of as many back."""
    device: float
    """That the device updates, with nothing else to do."""

    @property
    def streamed(self) -> float:
        """That come in, are updated and go back, in a row."""
        return min(self.link, self.device)

    def seconds(self, parameters: float, share: float) -> float:
        """How long a step takes in which the device has this share, and nothing else delays it."""
        host = self.host_beside if share else self.host
        return parameters * max((1 - share) / host, share / self.streamed)
