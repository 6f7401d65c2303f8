"""DHT nodes around one key that answer politely, take every record, and keep none.

Run as `python silent_nodes.py KEY NUMBER ADDRESS`. It prints a line when all nodes are part of the
DHT, and ends with its standard input. Each node chooses its own id, as anybody can.
"""

import asyncio
import sys
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage


class Nothing(DHTLocalStorage):  # type: ignore[misc]
    """Storage that forgets each record while it thanks for it."""

    def store(self, *_: Any, **__: Any) -> bool:
        return True

    def store_subkey(self, *_: Any, **__: Any) -> bool:
        return True


async def surround(key: str, number: int, address: str) -> list[DHTNode]:
    """Start the nodes, the nearest ids first."""
    centre, nodes = int(DHTID.generate(key)), []
    for distance in range(1, number + 1):
        node = await DHTNode.create(
            initial_peers=[address],
            node_id=DHTID(centre ^ distance),
            host_maddrs=["/ip4/127.0.0.1/tcp/0"],
            cache_locally=False,
        )
        protocol: DHTProtocol = node.protocol
        protocol.storage, protocol.cache.maxsize = Nothing(), 0
        nodes.append(node)
    return nodes


async def main(key: str, number: str, address: str) -> None:
    nodes = await surround(key, int(number), address)
    sys.stdout.write("surrounded\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(node.shutdown() for node in nodes), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
