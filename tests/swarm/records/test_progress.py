from hypothesis import given
from hypothesis import strategies as st
from swarm_samples import HEAD, a_lease

from atom.swarm.records.lease import PeerState
from atom.swarm.records.view import accumulated

OTHER = b"x" * 32


def test_only_reported_counts_of_this_head_are_added():
    leases = [
        a_lease("a", sequences=5),
        a_lease("b", sequences=7, state=PeerState.LEAVING),
        a_lease("c", sequences=100, head=OTHER),
        a_lease("d", sequences=100, head=b""),
    ]
    assert accumulated(leases, HEAD) == 12


def test_rates_and_times_add_nothing():
    fast = a_lease("a", sequences=0, sequences_per_s=1e9, tokens_per_s=1e12, issued_at=0.0)
    assert accumulated([fast], HEAD) == 0


def test_an_empty_swarm_has_done_nothing():
    assert accumulated([], HEAD) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())))
def test_what_others_do_on_other_heads_changes_nothing(reports):
    leases = [
        a_lease(str(number), sequences=count, head=HEAD if here else OTHER)
        for number, (count, here) in enumerate(reports)
    ]
    assert accumulated(leases, HEAD) == sum(count for count, here in reports if here)
