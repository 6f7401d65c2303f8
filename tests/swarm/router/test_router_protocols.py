"""PCP, NAT-PMP and UPnP: only fitting answers of the router on the default route count."""

import contextlib
import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.swarm.router import gateway, upnp
from atom.swarm.router.gateway import by_nat_pmp, by_pcp, default_gateway
from atom.swarm.router.requests import PortRefused, PortRequest, PublicPort
from tests.swarm.router.fake_router import Answers, nat_pmp, pcp, router

HERE = "127.0.0.1"
WISH = PortRequest(31337, 31337, 600, b"n" * 12)
OPENED = PublicPort("11.22.33.44", 4000, 600)
SILENT = "the router does not answer"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "WAITS_S", (0.1, 0.1))
    monkeypatch.setattr(upnp, "DISCOVERY_S", 0.2)


def changed(answer: bytes, at: int, value: int) -> bytes:
    return answer[:at] + bytes([value]) + answer[at + 1 :]


NONSENSE: list[Answers] = [
    lambda request: [],
    lambda request: [b"", b"\x02", b"\xff" * 60, bytes(1100), b"\x02\x81"],
    lambda request: [pcp(request)[:-1]],
    lambda request: [changed(pcp(request), 24, 0)],  # another device's nonce
    lambda request: [changed(pcp(request), 36, 17)],  # UDP
    lambda request: [changed(pcp(request), 41, 1)],  # another port
    lambda request: [changed(pcp(request), 1, 0x80)],
]


@pytest.mark.parametrize("answers", NONSENSE[:1] + NONSENSE[2:])
def test_answers_to_another_request_of_pcp_do_not_count(answers: Answers) -> None:
    with router(answers) as port, pytest.raises(PortRefused, match=SILENT):
        by_pcp(HERE, WISH, port)
    with router(lambda request: [*answers(request), pcp(request)]) as port:
        assert by_pcp(HERE, WISH, port) == OPENED


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (lambda request: [changed(pcp(request), 3, 8)], "code 8"),
        (lambda request: [changed(pcp(request)[:24], 3, 2)], "code 2"),
        (lambda request: [b"\0\x81\0\1" + bytes(4)], "does not know"),
    ],
)
def test_a_refusal_by_pcp_is_told_at_once(answers: Answers, reason: str) -> None:
    with router(answers) as port, pytest.raises(PortRefused, match=reason):
        by_pcp(HERE, WISH, port)


def test_a_flood_of_wrong_answers_ends_with_the_time() -> None:
    with router(lambda request: [bytes(1100)] * 2000) as port, pytest.raises(PortRefused):
        by_nat_pmp(HERE, WISH, port)


@pytest.mark.parametrize(
    "spoilt",
    [lambda answer: answer[:-1], lambda answer: changed(answer, 9, 0), lambda answer: b"\0\x81"],
)
def test_answers_to_another_request_of_nat_pmp_do_not_count(spoilt: Answers) -> None:
    def half(request: bytes) -> list[bytes]:
        answer = nat_pmp(request)
        return [answer if request == b"\0\0" else bytes(spoilt(answer))]

    with router(half) as port, pytest.raises(PortRefused, match=SILENT):
        by_nat_pmp(HERE, WISH, port)
    with router(lambda request: [*half(request), nat_pmp(request)]) as port:
        assert by_nat_pmp(HERE, WISH, port) == OPENED
    refusing = router(lambda request: [changed(nat_pmp(request), 3, 3)])
    with refusing as port, pytest.raises(PortRefused, match="code 3"):
        by_nat_pmp(HERE, WISH, port)


def test_the_gateway_is_the_router_of_the_default_route(tmp_path: Path) -> None:
    table = tmp_path / "route"
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    near = "eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    table.write_text(f"{head}{near}eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")
    assert default_gateway(table) == "192.168.1.1"
    table.write_text(head + near)
    with pytest.raises(PortRefused, match="no router"):
        default_gateway(table)
    with pytest.raises(PortRefused, match="does not list"):
        default_gateway(tmp_path / "none")


@contextlib.contextmanager
def answering(answer: str) -> Iterator[tuple[str, int]]:
    """Yield the place of a device that sends one answer to a search."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind((HERE, 0))
        line.settimeout(20.0)

        def serve() -> None:
            request, sender = line.recvfrom(2000)
            assert request.startswith(b"M-SEARCH")
            line.sendto(f"HTTP/1.1 200 OK\r\n{answer}\r\n\r\n".encode(), sender)

        thread = threading.Thread(target=serve)
        thread.start()
        yield line.getsockname()
        thread.join()


def test_the_router_is_found_by_upnp() -> None:
    with answering("location:http://127.0.0.1:5000/root.xml") as place:
        assert upnp.description_of(HERE, place) == "http://127.0.0.1:5000/root.xml"


@pytest.mark.parametrize(
    ("answer", "router_host", "reason"),
    [
        ("LOCATION: http://10.0.0.9/root.xml", HERE, "another host"),
        ("LOCATION: http://10.0.0.9:80@127.0.0.1/root.xml", HERE, "another host"),
        ("LOCATION: http://127.0.0.1:5000/root.xml", "192.168.1.1", SILENT),
        ("SERVER: without a location", HERE, SILENT),
    ],
)
def test_only_the_router_itself_counts_by_upnp(answer: str, router_host: str, reason: str) -> None:
    with answering(answer) as place, pytest.raises(PortRefused, match=reason):
        upnp.description_of(router_host, place)


class EndlessRouter(http.server.BaseHTTPRequestHandler):
    """Router that describes itself in 300 MB."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(300):
                self.wfile.write(b"<root>" + b"x" * 10**6)


CHILD = """
import sys
from atom.swarm.router import upnp

upnp.description_of = lambda gateway: sys.argv[5]
upnp.main(sys.argv[1:5])
"""


def test_an_endless_description_ends_the_child_alone() -> None:
    with http.server.ThreadingHTTPServer((HERE, 0), EndlessRouter) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://{HERE}:{server.server_port}/root.xml"
        command = [sys.executable, "-c", CHILD, HERE, "4000", "4000", "600", url]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        told, _ = child.communicate(timeout=60.0)
        server.shutdown()
    assert child.returncode or "refused" in json.loads(told)
    assert upnp.MAX_CHILD_BYTES < 300 * 10**6


@pytest.mark.parametrize("program", ["print('{')", "import time; time.sleep(60)", "1/0"])
def test_a_child_that_fails_opens_no_port(
    program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {upnp.sys.executable} -c "{program}"\n')
    python.chmod(0o700)
    monkeypatch.setattr(upnp, "CHILD_S", 1.0)
    monkeypatch.setattr(upnp.sys, "executable", str(python))
    with pytest.raises(PortRefused, match="malformed"):
        upnp.by_upnp(HERE, WISH)
