"""The running controller: store, gRPC, REST and signals in one event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal

import grpc
import uvicorn
from fastapi import FastAPI
from motor_rpc import control_pb2_grpc
from motor_rpc.sd_notify import feed_watchdog, notify

from controller.api.log_streams import LogStreams
from controller.api.rest import make_app
from controller.api.sessions import SERVER_OPTIONS, ControlServicer
from controller.config.plan import LoadedDeployment
from controller.service import ControllerService
from controller.store.interface import Store, StoreError, StoreLocked
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore

log = logging.getLogger("controller")

EXIT_FAILED, EXIT_STORE_LOCKED, EXIT_ADDRESS = 1, 3, 4


def make_store(deployment: LoadedDeployment) -> Store:
    settings = deployment.settings.store
    if settings.kind == "memory":
        log.warning("store: memory: this controller forgets everything when it ends")
        return MemoryStore()
    return SqliteStore(settings.path, settings.allow_network_fs)


async def run(deployment: LoadedDeployment) -> int:
    """Until SIGTERM or SIGINT; returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    service = ControllerService(deployment, make_store(deployment))
    try:
        await service.open()
    except StoreLocked as error:
        log.error("%s", error)
        return EXIT_STORE_LOCKED
    except StoreError as error:
        log.error("%s", error)
        return EXIT_FAILED
    try:
        return await _serve(deployment, service, stop)
    finally:
        await service.close()


async def _serve(deployment: LoadedDeployment, service: ControllerService, stop: asyncio.Event) -> int:
    settings = deployment.settings
    if settings.insecure:
        log.warning(
            "insecure: true: anyone who reaches %s or %s may read and steer this deployment",
            settings.grpc, settings.rest,
        )  # fmt: skip
    logs = LogStreams(service)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    control_pb2_grpc.add_ControlServicer_to_server(ControlServicer(service, logs), server)  # type: ignore[no-untyped-call]
    target = _join(settings.grpc.host, settings.grpc.port)
    try:
        bound = server.add_insecure_port(target)
    except RuntimeError as error:
        log.error("gRPC: %s cannot be bound: %s; change motor_controller_config.grpc", target, error)
        return EXIT_ADDRESS
    rest = _Rest(make_app(service, logs), settings.rest.host, settings.rest.port)
    rest_task = asyncio.create_task(rest.serve())
    try:
        if not await rest.up(rest_task):
            log.error(
                "REST: %s cannot be bound; change motor_controller_config.rest",
                _join(settings.rest.host, settings.rest.port),
            )
            return EXIT_ADDRESS
        await server.start()
        log.info("nodes dial %s, REST on %s", _join(settings.grpc.host, bound), _join(*rest.address()))
        notify(f"READY=1\nSTATUS=deployment {deployment.plan.deployment_id}, epoch {service.state.epoch}")
        watchdog = asyncio.create_task(feed_watchdog())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, rest_task}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        watchdog.cancel()
        notify("STOPPING=1")
        log.info("ending; engines keep running")
        return 0
    finally:
        await server.stop(grace=0.5)
        rest.should_exit = True
        await asyncio.wait({rest_task}, timeout=3.0)


class _Rest(uvicorn.Server):
    """uvicorn without its own signal handling: the loop has one already."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                app, host=host, port=port, log_level="warning", access_log=False, lifespan="off",
                timeout_graceful_shutdown=1,
            )
        )  # fmt: skip

    def install_signal_handlers(self) -> None:
        pass

    async def serve(self, sockets: object = None) -> None:
        try:
            await self._serve(sockets)  # type: ignore[arg-type]
        except SystemExit:
            # uvicorn exits the process when it cannot bind; the caller has something better to say
            return

    async def up(self, task: asyncio.Task[None]) -> bool:
        """True once it listens, False if it gave up."""
        while not self.started:
            if task.done():
                return False
            await asyncio.sleep(0.01)
        return True

    def address(self) -> tuple[str, int]:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return host, port


def _join(host: str, port: int) -> str:
    try:
        return f"[{host}]:{port}" if ipaddress.ip_address(host).version == 6 else f"{host}:{port}"
    except ValueError:
        return f"{host}:{port}"
