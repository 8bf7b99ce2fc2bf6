"""motor_controller_config.advertise -> how a controller is found by nodes and operators that asked another one."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from controller.config.errors import Findings, Shown
from controller.config.schema import Controller

_ADVERTISE = ("motor_controller_config", "advertise")
_HOST = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)"
_GRPC = re.compile(rf"{_HOST}:[0-9]{{1,5}}")
_REST = re.compile(rf"https?://{_HOST}(:[0-9]{{1,5}})?/?")


@dataclass(frozen=True)
class Advertised:
    """What this controller's key in a shared store says. Empty: it listens everywhere, and nobody said where it is."""

    grpc: str = ""  # host:port
    rest: str = ""  # base URL

    def problems(self, tls: bool) -> list[tuple[str, str, str]]:
        """(key, what was got, what was expected) of each address that cannot be used."""
        scheme = "https" if tls else "http"
        found = []
        if self.grpc and _GRPC.fullmatch(self.grpc) is None:
            found.append(("grpc", self.grpc, "host:port"))
        if self.rest and (_REST.fullmatch(self.rest) is None or not self.rest.startswith(f"{scheme}://")):
            found.append(("rest", self.rest, f"{scheme}://host:port"))
        return found

    def over(self, other: Advertised) -> Advertised:
        """These addresses, and the other's where there is none."""
        return replace(self, grpc=self.grpc or other.grpc, rest=self.rest or other.rest)


def read_advertised(controller: Controller, findings: Findings) -> Advertised:
    """What is written, else where it listens, if that is an address that others can dial."""
    tls = controller.tls is not None
    written = Advertised(controller.advertise.grpc or "", controller.advertise.rest or "")
    for name, got, expected in written.problems(tls):
        findings.error(
            (*_ADVERTISE, name), "cannot be dialled", got=got, expected=expected, rule="advertise-address"
        )  # fmt: skip
    found = written.over(_listening(controller, tls))
    if controller.store.kind == "etcd":
        for name, there, example in (
            ("grpc", found.grpc, f"10.0.0.1:{controller.grpc.port}"),
            ("rest", found.rest, f"{'https' if tls else 'http'}://10.0.0.1:{controller.rest.port}"),
        ):
            if not there:
                findings.warning(
                    (*_ADVERTISE, name),
                    f"is missing, and {name}.host is every address: a standby could not say where this controller is",
                    got=Shown("nothing"),
                    expected=f'this machine\'s own, such as "{example}"',
                    fix=f"write it, or start each controller with --advertise-{name} or MOTOR_ADVERTISE_{name.upper()}",
                    rule="advertise-missing",
                )
    return found


def _listening(controller: Controller, tls: bool) -> Advertised:
    grpc = "" if _anywhere(controller.grpc.host) else join(controller.grpc.host, controller.grpc.port)
    rest = "" if _anywhere(controller.rest.host) else join(controller.rest.host, controller.rest.port)
    return Advertised(grpc, f"{'https' if tls else 'http'}://{rest}" if rest else "")


def _anywhere(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return not host


def join(host: str, port: int) -> str:
    """`host:port`, with brackets around IPv6."""
    try:
        return f"[{host}]:{port}" if ipaddress.ip_address(host).version == 6 else f"{host}:{port}"
    except ValueError:
        return f"{host}:{port}"
