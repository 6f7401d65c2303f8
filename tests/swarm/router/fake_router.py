"""Router on the loopback interface that answers PCP and NAT-PMP as a test tells it to."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence

Answers = Callable[[bytes], Sequence[bytes]]


@contextlib.contextmanager
def router(answers: Answers) -> Iterator[int]:
    """Yield the UDP port of a router that sends `answers(request)` for each request."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))
        line.settimeout(0.02)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    request, sender = line.recvfrom(2000)
                    for answer in answers(request):
                        line.sendto(answer, sender)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield line.getsockname()[1]
        finally:
            over.set()
            thread.join()


def pcp(request: bytes, host: str = "11.22.33.44", port: int = 4000, lasts_s: int = 600) -> bytes:
    """Answer of a router that opens the port of a request by PCP."""
    head = struct.pack("!BBBBII", 2, 0x81, 0, 0, lasts_s, 7) + bytes(12)
    outside = struct.pack("!H", port) + bytes(10) + b"\xff\xff" + socket.inet_aton(host)
    return head + request[24:42] + outside


def nat_pmp(request: bytes, host: str = "11.22.33.44", port: int = 4000) -> bytes:
    """Answer of a router that opens the port of a request by NAT-PMP."""
    if request == b"\0\0":
        return struct.pack("!BBHI", 0, 0x80, 0, 7) + socket.inet_aton(host)
    _, _, _, inside, _, lasts_s = struct.unpack("!BBHHHI", request)
    return struct.pack("!BBHIHHI", 0, 0x82, 0, 7, inside, port, lasts_s)
