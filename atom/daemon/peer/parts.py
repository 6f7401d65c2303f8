"""What a running peer is made of; built and wired by `atom.daemon.peer.assembly`."""

from collections.abc import Callable
from dataclasses import dataclass

from atom.daemon.control import ControlServer
from atom.daemon.extensions import Turns, Wishes
from atom.daemon.owner.pauses import Pauses
from atom.daemon.owner.settings import Settings
from atom.daemon.peer.ended_attempts import EndedAttempts
from atom.daemon.peer.founding import Membership
from atom.daemon.peer.lookout import Lookout
from atom.swarm.chain.commit import Voter
from atom.swarm.transport.outreach import Outreach
from atom.swarm.transport.transport import Transport
from atom.training.loop import RoundLoop
from atom.training.replica.worker import Worker
from atom.training.round import RoundMachine
from atom.training.round_executor import RoundExecutor
from atom.training.state_sync import PeerDonors
from atom.training.storage.run_storage import RunStorage


@dataclass(frozen=True)
class Parts:
    """One of each; started and ended by `atom.daemon.peer.life`."""

    me: Voter
    member: Membership
    transport: Transport
    outreach: Outreach
    data_addresses: Callable[[], tuple[str, ...]]
    worker: Worker
    pauses: Pauses
    wishes: Wishes
    settings: Settings
    turns: Turns
    executor: RoundExecutor
    storage: RunStorage
    donors: PeerDonors
    lookout: Lookout
    control: ControlServer
    ended_attempts: EndedAttempts
    make_loop: Callable[[bytes], tuple[RoundMachine, RoundLoop]]
