"""HTTP server of the page. It serves the state of a feed, by GET only, and takes no input."""

import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web
from aiohttp.http import HttpProcessingError

from atom.extras.dashboard.feed import LOOK_EVERY_S, SwarmFeed
from atom.extras.dashboard.page import content, page
from atom.swarm.addresses import ListenAddress, listening
from atom.swarm.dial_rules import answers_to

LOOPBACK = "127.0.0.1"

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FAREWELL_S = 0.5
"""Longest wait for answers that are under way when the server ends."""
_SILENCE_S = 15.0
"""Longest time that a connection may stay open without a request."""
_STATIC = files("atom.extras.dashboard") / "static"
_STATIC_KINDS = {
    "style.css": "text/css", "script.js": "text/javascript", "icon.svg": "image/svg+xml",
}  # fmt: skip
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def serve(
    feed: SwarmFeed,
    where: ListenAddress,
    ready: Callable[[str], None],
    every_s: float = LOOK_EVERY_S,
) -> None:
    """Follow the swarm and serve the page until cancelled.

    Args:
        feed: Feed of the swarm; this function runs its `follow`.
        where: Address of this machine to listen on.
        ready: Called with the URL once the server listens.
        every_s: Seconds between two views of the swarm.

    Raises:
        PortInUseError: Another program has the port.
        AddressError: The host is not an address of this machine.
    """
    runner = web.AppRunner(
        _application(feed, where),
        access_log=None,
        shutdown_timeout=_FAREWELL_S,
        keepalive_timeout=_SILENCE_S,
        logger=_log_of_faults(),
    )
    await runner.setup()
    try:
        ready(await _listening(runner, where))
        await feed.follow(every_s)
    finally:
        await runner.cleanup()


def _application(feed: SwarmFeed, where: ListenAddress) -> web.Application:
    @web.middleware
    async def own_name_only(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if not answers_to(where.host, request.host):
            raise web.HTTPMisdirectedRequest(text="open the address that atom dashboard printed")
        return await handler(request)

    application = web.Application(middlewares=[own_name_only])
    application.on_response_prepare.append(_add_headers)
    add = application.router.add_get
    add("/", _serving(lambda: page(feed.seen), "text/html"))
    add("/content", _serving(lambda: content(feed.seen), "text/html"))
    for name, kind in _STATIC_KINDS.items():
        add(f"/{name}", _serving(_STATIC.joinpath(name).read_text, kind))
    return application


def _log_of_faults() -> logging.Logger:
    # Our own faults only: malformed requests of strangers would fill a disk with tracebacks.
    log = logging.getLogger(__name__)
    log.addFilter(_is_our_fault)
    return log


def _is_our_fault(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def _listening(runner: web.AppRunner, where: ListenAddress) -> str:
    """Start to listen, and return the URL. Raises: PortInUseError, AddressError."""
    await web.SockSite(runner, listening(where.host, where.port, "--host and --port")).start()
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _serving(text: Callable[[], str], content_type: str) -> _Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=text(), content_type=content_type, charset="utf-8")

    return handle


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    # aiohttp calls this for every answer, refusals included.
    response.headers.update(_HEADERS)


__all__ = ["LOOPBACK", "serve"]
