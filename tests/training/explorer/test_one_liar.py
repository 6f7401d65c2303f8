"""One voter of 3 to 5 lies: it sends any message of its alphabet, to any peer, at any time.

Honest voters vote only for values whose statements they can check, and apply only values that
catch-up accepts. From four voters on, no two values are decided. Of three voters, two quorums may
share the liar alone, so it can split the others; then it alone is in both certificates, which is
the proof of its lie.
"""

import pytest

from .bounds import Bounds
from .fair import decides
from .liar import VALUES
from .properties import PROPERTIES, Property
from .search import Verdict, search
from .world import Finished, Step, World, certifiable

pytestmark = pytest.mark.timeout(900)  # seconds of a free core; a busy one takes its time


LAST = [(3, 2, name, 6) for name in VALUES]
LAST += [(4, 3, "all that promised", 6), (5, 4, "another result", 6)]
"""Numbers of voters and of the liar, the last in line; its value; and the depth of the search."""
FIRST = [(3, 0, name, 8) for name in VALUES]


@pytest.mark.parametrize(("peers", "liar", "name", "depth"), LAST + FIRST)
def test_no_honest_voter_is_deceived_by_a_value(
    peers: int, liar: int, name: str, depth: int
) -> None:
    check_sound(Bounds(name, peers, 0, lies=5, liar=liar, values=(name,), depth=depth))


def check_sound(bounds: Bounds, *properties: Property) -> Verdict:
    """Search with these properties, or with all, and find nothing."""
    verdict = search(bounds, properties=properties or PROPERTIES.values())
    assert verdict.trouble is None, "\n" + verdict.story()
    return verdict


def test_a_true_value_of_a_lying_voter_is_voted_for() -> None:
    """Else the tests above would prove nothing."""
    bounds = Bounds("", 3, 0, lies=5, liar=2, values=("all that promised",), depth=10)
    verdict = search(bounds, properties=[_is_applied])
    assert verdict.trouble == "applied after a true exchange"


def _is_applied(world: World, step: Step) -> str | None:
    averaged = any(isinstance(fact, Finished) for fact in world.known(step.after.facts))
    return "applied after a true exchange" if step.outcome.applied and averaged else None


@pytest.mark.parametrize("peers", [4, 5])
@pytest.mark.parametrize("last", [False, True])
def test_a_liar_that_proposes_two_values_at_one_ballot_splits_no_four_voters(
    peers: int, last: bool
) -> None:
    """The liar averages with each half of the other peers separately, and proposes a different
    value to each half."""
    assert check_sound(_two_values(peers, last * (peers - 1))).complete


def test_of_three_voters_a_liar_can_split_the_others() -> None:
    """A known limit: three voters survive a crash or a lie, not both."""
    verdict = search(_two_values(3, 0), properties=[_is_split])
    assert verdict.trouble == "two values have a quorum"


def _two_values(peers: int, liar: int) -> Bounds:
    values = ("all that promised",)
    return Bounds("", peers, 0, lies=14, liar=liar, splits=True, values=values)


def _is_split(world: World, step: Step) -> str | None:
    values = certifiable(step.after, world, world.first)
    return "two values have a quorum" if len(values) > 1 else None


def test_nobody_but_the_liar_is_in_two_certificates_of_one_head() -> None:
    """A and B decide; before B hears of it, C leads and proposes something else."""
    bounds = Bounds(
        "", 3, 1, lies=3, liar=2, lying_ballots=2, values=("all that promised",),
        sees=("B", "A", ""),
    )  # fmt: skip
    check_sound(bounds, PROPERTIES["agreement"])


@pytest.mark.parametrize("lies", [1, 2])
def test_a_round_follows_once_the_liar_is_silent(lies: int) -> None:
    bounds = Bounds("", 3, 0, lies=lies, liar=2, values=("another result",))
    check_sound(bounds, PROPERTIES["no exception"], decides)
