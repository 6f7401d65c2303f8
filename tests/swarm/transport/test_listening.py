"""A door that cannot be opened says why, and what to write instead."""

import pytest

from atom.base.errors import AddressError
from atom.swarm.transport.listener import listening


def test_an_address_of_another_machine() -> None:
    with pytest.raises(AddressError, match=r"cannot listen on 203\.0\.113\.7:0: Cannot") as refused:
        listening(("203.0.113.7", 0))
    assert "[network] data_port" in refused.value.hint
