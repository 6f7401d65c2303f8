"""How much of the optimizer's step the device should take: by measured rates, or nothing. Pure.

The step runs under the next pass. Each share makes the host's part shorter, and asks more of what
the pass needs as well: the device, and the link each way. A pass under a step takes at least as
long as its own schedule, whose loads wait until the step has updated what they bring; and as each
of the three has work to do, the pass's and the step's together. The share with the shortest such
pass is the best one; where a pass has enough to compute to hide the host's step, that is none.
"""

from dataclasses import dataclass

from atom.plan.choice import Choice
from atom.swap.step_rates import StepRates

SHARES = 32
"""Shares are tried in steps of one in so many."""
WORTH = 0.02
"""Of the pass under the step: a share that shortens it by less is not taken."""
NEARLY = 0.005
"""Of two shares that come as close, the smaller."""


@dataclass(frozen=True)
class StepShare:
    """What the device does of each step, and what that is expected to give."""

    share: float
    """Of the parameters; 0: all is the host's."""
    parameters_per_s: float
    """Of the whole step, nothing else delaying it."""
    pass_s: float
    """Of a pass that begins with the step."""
    pass_by_host_s: float
    """The same if the host does all of it."""
    rates: StepRates


def choose_share(choice: Choice, parameters: float, rates: StepRates) -> StepShare:
    """The best share for this pass."""
    shares = [number / SHARES for number in range(SHARES + 1)]
    tried = [share_of(choice, parameters, rates, share) for share in shares]
    best = min(each.pass_s for each in tried)
    chosen = next(each for each in tried if each.pass_s <= (1 + NEARLY) * best)
    worth = chosen.pass_s <= (1 - WORTH) * chosen.pass_by_host_s
    return chosen if worth else tried[0]


def share_of(choice: Choice, parameters: float, rates: StepRates, share: float) -> StepShare:
    """This share, whatever comes of it."""
    return StepShare(
        share,
        parameters / rates.seconds(parameters, share),
        _pass_s(choice, parameters, rates, share),
        _pass_s(choice, parameters, rates, 0.0),
        rates,
    )


def _pass_s(choice: Choice, parameters: float, rates: StepRates, share: float) -> float:
    under = choice.seconds_under_step(parameters / rates.seconds(parameters, share))
    timeline, streamed = choice.timeline, share * parameters
    return max(
        under,
        timeline.busy_s("compute") + streamed / rates.device,
        timeline.busy_s("load") + streamed / rates.link,
        timeline.busy_s("gradients") + streamed / rates.link,
    )
