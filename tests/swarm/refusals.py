"""Reason with which a call is refused."""

from collections.abc import Callable

import pytest

from atom.base.errors import PeerRefused, Reason


def refusal(call: Callable[..., object], *given: object, match: str | None = None) -> Reason:
    """The reason; `match`: of its words."""
    with pytest.raises(PeerRefused, match=match) as refused:
        call(*given)
    return refused.value.reason
