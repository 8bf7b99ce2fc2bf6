"""Certificates for tests, made by `motorctl certs` itself, and controllers and nodes that use them."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner, Result
from motor_rpc import control_pb2 as pb
from motor_rpc.tls import TlsFiles

from motorctl import certs_make
from motorctl.main import main as motorctl
from nodemanager.dial import Dialer
from nodemanager.link import Link, LinkState
from tests.cluster.deployment import Deployment, engine_section
from tests.nodemanager.places import Node, until


def certs(*arguments: str | Path) -> Result:
    """`motorctl certs ...`, in this process."""
    return CliRunner().invoke(motorctl, ["certs", *map(str, arguments)])


def made(*arguments: str | Path) -> None:
    result = certs(*arguments)
    assert result.exit_code == 0, result.output


@dataclass
class Pki:
    """One CA's folder."""

    folder: Path

    def __post_init__(self) -> None:
        made("init", self.folder, "--controller", "127.0.0.1", "--name", self.folder.name)

    def node(self, node_id: str, ca: Path | None = None) -> TlsFiles:
        stem = self.folder / "nodes" / node_id
        if not stem.with_suffix(".pem").exists():
            made("node", self.folder, node_id)
        return TlsFiles(stem.with_suffix(".pem"), stem.with_suffix(".key"), ca or self.ca)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def controller(self, **files: Path) -> dict[str, str]:
        """The section `tls` of deploy.json."""
        given = {"cert": self.folder / "controller.pem", "key": self.folder / "controller.key", "ca": self.ca, **files}
        return {name: str(path) for name, path in given.items()}


@contextmanager
def ended(monkeypatch: Any) -> Iterator[None]:
    """What is signed meanwhile ended half an hour ago."""
    with monkeypatch.context() as changed:
        changed.setattr(certs_make, "LEAF_DAYS", -0.02)
        yield


class SecureDeployment(Deployment):
    """As Deployment, over mutual TLS and https."""

    pki: Pki

    def __init__(self, root: Path, pki: Pki, **settings: Any) -> None:
        self.pki = pki
        sections = {"motor_engine_union_config": engine_section()}
        super().__init__(root, sections, {"tls": pki.controller(), **settings})

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.rest_port}"

    def get(self, path: str) -> Any:
        context = ssl.create_default_context(cafile=self.pki.ca)
        try:
            answer = httpx.get(self.url + path, timeout=10.0, trust_env=False, verify=context)
        except httpx.HTTPError:
            return None
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    def add_node(self, number: int, **settings: Any) -> Node:
        files = self.pki.node(f"n{number}")
        tls = {"ca": str(files.ca), "cert": str(files.cert), "key": str(files.key)}
        return super().add_node(number, **{"tls": tls, **settings})

    def said(self) -> str:
        """What the controller's operator reads."""
        return (self.root / "controller.out").read_text()

    def wait_said(self, text: str) -> None:
        self.wait(lambda: text in self.said(), f"the controller to say {text!r}", 10.0)


async def dialled(port: int, files: TlsFiles | None, node_id: str = "n1", host: str = "127.0.0.1") -> LinkState:
    """What a node's operator reads after one dial: the link's state and its reason."""
    async with linked(port, files, node_id, host) as link:
        await until(lambda: link.state.state == "connected" or link.state.detail, 20.0)
        return link.state


@asynccontextmanager
async def linked(
    port: int, files: TlsFiles | None, node_id: str = "n1", host: str = "127.0.0.1"
) -> AsyncIterator[Link]:
    """A node's link that keeps dialling while the block runs."""

    async def register() -> pb.RegisterMsg:
        return pb.RegisterMsg(
            protocol=1, node_id=node_id, boot_id="b1", incarnation=time.time_ns() // 1_000_000,
            deployment_id="default", address="127.0.0.1", device_kind="cpu",
        )  # fmt: skip

    async def handle(_: pb.ControllerMessage) -> None:
        pass

    link = Link([(host, port)], register, handle, (0.02, 0.1), 0.2, dialer=Dialer(files))
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=10.0)
        assert done, "a link that is told to end ends"
