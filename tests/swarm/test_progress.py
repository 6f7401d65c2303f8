from hypothesis import given
from hypothesis import strategies as st
from swarm_samples import HEAD, a_lease

from atom.swarm.progress import accumulated, is_due
from atom.swarm.records import PeerState

OTHER = b"x" * 32


def test_only_reported_counts_of_this_head_are_added():
    leases = [
        a_lease("a", sequences=5),
        a_lease("b", sequences=7, state=PeerState.LEAVING),
        a_lease("c", sequences=100, head=OTHER),
        a_lease("d", sequences=100, head=b""),
    ]
    assert accumulated(leases, HEAD) == 12
    assert is_due(leases, HEAD, 12)
    assert not is_due(leases, HEAD, 13)


def test_rates_and_times_add_nothing():
    fast = a_lease("a", sequences=0, sequences_per_s=1e9, tokens_per_s=1e12, issued_at=0.0)
    assert accumulated([fast], HEAD) == 0
    assert not is_due([fast], HEAD, 1)


def test_an_empty_swarm_is_never_due():
    assert not is_due([], HEAD, 0)
    assert not is_due([], HEAD, 1)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans())), st.integers(1, 500))
def test_due_exactly_when_the_sum_reaches_the_global_batch(reports, batch):
    leases = [
        a_lease(str(number), sequences=count, head=HEAD if here else OTHER)
        for number, (count, here) in enumerate(reports)
    ]
    assert is_due(leases, HEAD, batch) == (sum(c for c, here in reports if here) >= batch)
