"""Ports that the router opens: which are accepted, how they are renewed, and that they close."""

from dataclasses import dataclass, field, replace

import pytest

from atom.swarm.router import ports
from atom.swarm.router.ports import LASTS_S, PortKeeper, Protocol, find_router, open_port
from atom.swarm.router.requests import PortRefused, PortRequest, PublicPort
from tests.event_list import EventList

ROUTER, PUBLIC = "192.168.1.1", "11.22.33.44"
WISH = PortRequest(4000, 4000, LASTS_S)


@dataclass
class PlayedRouter:
    """Router whose next answers a test chooses; it knows what is open."""

    host: str = PUBLIC
    lasts_s: int = LASTS_S
    shift: int = 0
    refuses: bool = False
    open: dict[int, int] = field(default_factory=dict)
    """Port of this machine by the router's port."""

    def way(self, gateway: str, request: PortRequest) -> PublicPort:
        assert gateway == ROUTER
        if self.refuses:
            raise PortRefused("not today")
        if not request.lasts_s:
            assert self.open.pop(request.outside) == request.inside
            return PublicPort(self.host, 0, 0)
        port = request.outside if request.outside in self.open else request.outside + self.shift
        self.open[port] = request.inside
        return PublicPort(self.host, port, min(self.lasts_s, request.lasts_s))


def refusing(gateway: str, request: PortRequest) -> PublicPort:
    raise PortRefused("unknown")


def keeper_of(router: PlayedRouter, **more: Protocol) -> tuple[PortKeeper, EventList]:
    events = EventList()
    return PortKeeper(events, lambda: ROUTER, {**more, "played": router.way}), events


def test_the_first_way_that_succeeds_is_taken() -> None:
    router = PlayedRouter(shift=5)
    port = open_port(ROUTER, WISH, {"first": refusing, "second": router.way})
    assert (port.protocol, port.opened) == ("second", PublicPort(PUBLIC, 4005, LASTS_S))
    with pytest.raises(PortRefused, match=r"first: unknown; other: unknown"):
        open_port(ROUTER, WISH, {"first": refusing, "other": refusing})


@pytest.mark.parametrize(
    ("router", "reason"),
    [
        (PlayedRouter(host="100.64.0.9"), "translates"),
        (PlayedRouter(host="192.168.0.2"), "translates"),
        (PlayedRouter(host="0.0.0.0"), "translates"),
        (PlayedRouter(host="127.0.0.1"), "translates"),
        (PlayedRouter(lasts_s=5), "for 5 s"),
        (PlayedRouter(shift=-3999), "port 1 "),
    ],
)
def test_a_port_that_helps_nobody_is_closed_again(router: PlayedRouter, reason: str) -> None:
    with pytest.raises(PortRefused, match=reason):
        open_port(ROUTER, WISH, {"played": router.way})
    assert not router.open


def test_reserved_ports_are_not_opened() -> None:
    with pytest.raises(PortRefused, match="reserved"):
        open_port(ROUTER, replace(WISH, inside=22), {"never asked": refusing})


def test_both_ports_are_open_or_none() -> None:
    router = PlayedRouter()
    keeper, _ = keeper_of(router)
    with pytest.raises(PortRefused):
        keeper.open([4000, 22])
    assert not router.open
    assert keeper.outside(4000) is None


def test_a_router_with_a_new_address_is_noticed_at_the_renewal_and_a_restarted_one_asked() -> None:
    router = PlayedRouter()
    keeper, events = keeper_of(router)
    assert [port.opened.port for port in keeper.open([4000, 5000])] == [4000, 5000]
    keeper.start()
    assert keeper.renew()
    assert not events.events
    router.host, router.open = "11.22.33.55", {}
    assert keeper.renew()
    assert events.events[0] == {
        "event": "port-opened", "port": 4000, "outside": "11.22.33.55:4000",
    }  # fmt: skip
    assert keeper.outside(5000).address == "11.22.33.55:5000"  # type: ignore[union-attr]
    router.refuses = True
    assert not keeper.renew()
    assert events.events[-1]["event"] == "port-refused"
    router.refuses, router.open, router.shift = False, {}, 7
    assert keeper.renew()
    assert keeper.outside(4000).port == 4007  # type: ignore[union-attr]
    keeper.close()
    keeper.close()
    assert not router.open


def test_the_protocol_that_succeeded_is_asked_first_from_then_on() -> None:
    """A router that knows only UPnP would let each renewal wait seconds for the other protocols."""
    router, asked = PlayedRouter(), list[str]()

    def silent(gateway: str, request: PortRequest) -> PublicPort:
        asked.append("silent")
        raise PortRefused("no answer")

    keeper, _ = keeper_of(router, silent=silent)
    keeper.open([4000, 5000])
    assert asked == ["silent"]
    assert keeper.renew()
    assert asked == ["silent"]
    router.refuses = True
    assert not keeper.renew()
    assert asked == ["silent"] * 3, "the other protocols are tried again"


def test_a_router_is_found_and_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "default_gateway", lambda: ROUTER)
    requests = list[PortRequest]()

    def says(host: str) -> Protocol:
        def answer(gateway: str, request: PortRequest) -> PublicPort:
            assert gateway == ROUTER
            requests.append(request)
            return PublicPort(host, 0, 0)

        return answer

    assert find_router({"PCP": says("0.0.0.0"), "NAT-PMP": says(PUBLIC)}) == ("PCP", PUBLIC)
    assert find_router({"PCP": refusing, "UPnP": says("100.64.0.9")}) == ("UPnP", "100.64.0.9")
    assert {(each.lasts_s, each.inside < 1024) for each in requests} == {(0, True)}
    with pytest.raises(PortRefused, match="no router answers by PCP, UPnP"):
        find_router({"PCP": refusing, "UPnP": refusing})
