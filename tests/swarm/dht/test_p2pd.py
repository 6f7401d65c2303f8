import asyncio
import importlib.util

import pytest

from atom.base.errors import UserError
from atom.swarm.addresses import parse_listen
from atom.swarm.dht.p2pd import NodeSettings, P2pDaemon


def test_without_hivemind_the_hint_leads_to_the_command_for_this_installation(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="hivemind is not installed") as caught:
        asyncio.run(P2pDaemon(tmp_path).start(NodeSettings(), parse_listen("127.0.0.1:0")))
    assert "atom doctor" in caught.value.hint
