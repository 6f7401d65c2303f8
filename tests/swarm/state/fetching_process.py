"""A joiner in a process of its own, to be killed: says each piece of a state that lands."""

import sys
from pathlib import Path

from atom.swarm.identity import Identity
from atom.swarm.state.fetch import Wanted, Watch, fetch
from atom.swarm.stream.handshake import Local
from atom.swarm.transport.transport import Transport
from tests.event_list import EventList


def main(donor: str, address: str, name: str, digest: str, folder: str) -> None:
    local = Local(Identity.create(), bytes(32), bytes(16))
    transport = Transport(local, ("127.0.0.1", 0), EventList())
    transport.start()
    transport.set_addresses(donor, [address])
    wanted = Wanted(name, [donor], bytes.fromhex(digest), 1 << 30)
    fetch(transport, wanted, Path(folder), watch=Watch(on_progress=say))


def say(done: int, total: int) -> None:
    sys.stdout.write(f"{done}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
