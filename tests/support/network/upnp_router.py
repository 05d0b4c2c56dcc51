"""A router that speaks UPnP on loopback: right, or as hostile as a test wants it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"
DESCRIPTION = f"""<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><device>
<deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><friendlyName>box</friendlyName><UDN>uuid:1</UDN>
<serviceList><service><serviceType>{_SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<controlURL>/control</controlURL><eventSubURL>/events</eventSubURL><SCPDURL>/service.xml</SCPDURL></service></serviceList>
</device></root>"""
_ADDED = {
    "NewRemoteHost": "string",
    "NewExternalPort": "ui2",
    "NewProtocol": "string",
    "NewInternalPort": "ui2",
    "NewInternalClient": "string",
    "NewEnabled": "boolean",
    "NewPortMappingDescription": "string",
    "NewLeaseDuration": "ui4",
}


def _action(name: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    arguments = "".join(
        f"<argument><name>{one}</name><direction>{way}</direction><relatedStateVariable>{one}</relatedStateVariable></argument>"
        for way, names in (("in", inputs), ("out", outputs))
        for one in names
    )
    return f"<action><name>{name}</name><argumentList>{arguments}</argumentList></action>"


def _service() -> str:
    outputs = {"NewExternalIPAddress": "string"}
    actions = _action("AddPortMapping", _ADDED, {}) + _action("GetExternalIPAddress", {}, outputs)
    actions += _action("DeletePortMapping", dict(list(_ADDED.items())[:3]), {})
    variables = "".join(
        f'<stateVariable sendEvents="no"><name>{name}</name><dataType>{kind}</dataType></stateVariable>'
        for name, kind in (_ADDED | outputs).items()
    )
    return (
        '<scpd xmlns="urn:schemas-upnp-org:service-1-0">'
        f"<actionList>{actions}</actionList><serviceStateTable>{variables}</serviceStateTable></scpd>"
    )


@dataclass
class FakeRouter:
    """What it says, and what it was asked. ``pages``: path -> body. ``errors``: refuses each of these calls with a code."""

    outer_host: str = "9.9.9.9"
    pages: dict[str, str] = field(default_factory=lambda: {"/root.xml": DESCRIPTION, "/service.xml": _service()})
    errors: list[int] = field(default_factory=list)
    #: The values of each AddPortMapping that succeeded, by outer port.
    mapped: dict[int, dict[str, str]] = field(default_factory=dict)
    removed: list[int] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    #: Where it says that its description is (default: at itself).
    location: str = ""
    #: Writes the answer to a request in another way.
    answer: Callable[[BaseHTTPRequestHandler], None] | None = None
    error_text: str = "no"
    search: tuple[str, int] = ("", 0)

    def call(self, action: str, body: str) -> tuple[int, str]:
        values = dict(re.findall(r"<(New\w+)>(.*?)</", body))
        if action != "GetExternalIPAddress" and self.errors and (code := self.errors.pop(0)):
            fault = f"<UPnPError xmlns='urn:schemas-upnp-org:control-1-0'><errorCode>{code}</errorCode>"
            fault += f"<errorDescription>{self.error_text}</errorDescription></UPnPError>"
            return 500, f"<s:Fault><faultcode>s:Client</faultcode><detail>{fault}</detail></s:Fault>"
        answer = ""
        if action == "AddPortMapping":
            self.mapped[int(values["NewExternalPort"])] = values
        elif action == "DeletePortMapping":
            self.removed.append(int(values["NewExternalPort"]))
        else:
            answer = f"<NewExternalIPAddress>{self.outer_host}</NewExternalIPAddress>"
        return 200, f'<u:{action}Response xmlns:u="{_SERVICE}">{answer}</u:{action}Response>'


@contextmanager
def serving(router: FakeRouter) -> Iterator[FakeRouter]:
    """Serve ``router`` at 127.0.0.1; searches go to ``router.search``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            router.requests.append(self.path)
            if router.answer is not None:
                router.answer(self)
                return
            self._send(200, router.pages[self.path])

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            code, text = router.call(self.headers["SOAPAction"].strip('"').rpartition("#")[2], body)
            envelope = f'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>{text}</s:Body></s:Envelope>'
            self._send(code, envelope)

        def _send(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as search:
        search.bind(("127.0.0.1", 0))
        router.search = search.getsockname()
        router.location = router.location or f"http://127.0.0.1:{server.server_port}/root.xml"

        def answer() -> None:
            while (found := search.recvfrom(4096))[0]:
                lines = ("HTTP/1.1 200 OK", f"LOCATION: {router.location}", "ST: upnp:rootdevice", "USN: uuid:1", "", "")
                search.sendto("\r\n".join(lines).encode(), found[1])

        threads = [threading.Thread(target=server.serve_forever, args=(0.01,)), threading.Thread(target=answer)]
        for thread in threads:
            thread.start()
        try:
            yield router
        finally:
            server.shutdown()
            search.sendto(b"", router.search)
            for thread in threads:
                thread.join()
