"""Are ports free, who holds them, and can the group's other nodes reach the master's port?"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterable, Mapping

import psutil
from motor_rpc.deadline import within

from nodemanager.netif import network_error

CONNECT_SECONDS = 2.0
RETRY_SECONDS = 0.3
SECOND_LOOK_SECONDS = 0.2
GREETING = b"motor-prepare "


def taken_ports(ports: Iterable[int], address: str) -> dict[int, str]:
    """Each port that an engine could not listen on, and who is in the way: "held by python3, pid 812". `address`: a
    literal, beside the wildcards; empty: those only.
    """
    taken = [port for port in ports if not _free(port, address)]
    if taken:
        # A child of this process holds a copy of a probe's socket from its fork to its exec.
        time.sleep(SECOND_LOOK_SECONDS)
        taken = [port for port in taken if not _free(port, address)]
    return {port: _holder(port) for port in taken}


def show_taken(taken: Mapping[int, str]) -> str:
    """Taken ports in one clause: "7001 (held by python3, pid 812), 8000 (...)"."""
    return ", ".join(f"{port} ({holder})" for port, holder in sorted(taken.items()))


def _free(port: int, address: str) -> bool:
    """True if an engine could listen there, on all addresses as torch does and on `address` as vLLM does.

    SO_REUSEADDR as both engines set it, so that connections in TIME_WAIT do not count; `listen` finds what
    bind alone lets pass.
    """
    for family, host in (
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::"),
        (socket.AF_INET6 if ":" in address else socket.AF_INET, address),
    ):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # no IPv6 on this machine
            continue
        with probe:
            try:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((host, port))
                probe.listen(1)
            except OSError as error:
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue
                return False
    return True


def _holder(port: int) -> str:
    """Who listens on `port`, as far as this user may see."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port:
                if connection.pid is None:
                    break
                with contextlib.suppress(psutil.Error):
                    return f"held by {psutil.Process(connection.pid).name()}, pid {connection.pid}"
                return f"held by pid {connection.pid}"
    hint = "" if os.geteuid() == 0 else "; see `ss -ltnp` as root"
    return f"held by a process of another user or namespace{hint}"


class MasterListener:
    """Stands in for the engine on the master port during prepare, so that followers can try the way to it.

    Says the run id to whoever connects, and lets the other side close first: the port gets no TIME_WAIT.
    """

    def __init__(self, run_id: str) -> None:
        self._greeting = GREETING + run_id.encode() + b"\n"
        self._server: asyncio.Server | None = None

    async def listen(self, address: str, port: int) -> None:
        """OSError if the port cannot be taken."""
        self._server = await asyncio.start_server(self._greet, address, port, reuse_address=True)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._greeting)
            await within(CONNECT_SECONDS, reader.read(1))
        except (OSError, asyncio.TimeoutError):
            pass
        finally:
            writer.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


async def reach_master(address: str, port: int, run_id: str, deadline_seconds: float) -> tuple[bool, str]:
    """Try until the master answers with `run_id` or the deadline is over; (reached, what was seen)."""
    where = f"{address} port {port}"
    give_up = time.monotonic() + deadline_seconds
    while True:
        try:
            greeting = await within(CONNECT_SECONDS, _greeting(address, port))
        except asyncio.TimeoutError:
            seen = "no answer (a firewall that drops packets?)"
        except OSError as error:
            seen = network_error(error)
        else:
            if greeting == GREETING + run_id.encode() + b"\n":
                return True, f"{where} answers"
            seen = f"something else listens there: {greeting[:40]!r}"
        if time.monotonic() + RETRY_SECONDS > give_up:
            return False, (
                f"{where}: {seen}, tried for {deadline_seconds:g} s; let the nodes of a group reach each other"
            )
        await asyncio.sleep(RETRY_SECONDS)


async def _greeting(address: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        return await reader.readline()
    finally:
        writer.close()
