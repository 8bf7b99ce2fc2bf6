"""The running controller: store, gRPC, REST and signals in one event loop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
from collections.abc import Callable

import grpc
import uvicorn
from motor_rpc import control_pb2_grpc
from motor_rpc.sd_notify import feed_watchdog, notify
from motor_rpc.tls import TlsError

from controller.api.access import App
from controller.api.guard import guarded, open_tokens, uvicorn_limits
from controller.api.node_door import NodeDoor
from controller.api.rest_door import RestDoor
from controller.api.sessions import SERVER_OPTIONS
from controller.api.tls import ServerTls, bind_streams, open_tls
from controller.api.tokens import TokenFile, TokenFileError
from controller.config.advertise_rules import join
from controller.config.plan import LoadedDeployment
from controller.leadership import Leadership
from controller.store.etcd import EtcdStore
from controller.store.interface import Leader, Store, StoreError, StoreLocked
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore
from controller.term import Term
from controller.terms import run_terms

log = logging.getLogger("controller")

EXIT_FAILED, EXIT_CONFIG, EXIT_STORE_LOCKED, EXIT_ADDRESS = 1, 2, 3, 4


def make_store(deployment: LoadedDeployment) -> Store:
    settings = deployment.settings.store
    if settings.kind == "memory":
        log.warning("store: memory: this controller forgets everything when it ends")
        return MemoryStore()
    if settings.etcd is not None:
        found = deployment.settings.advertised
        me = Leader(secrets.token_hex(8), found.grpc, found.rest, 0)
        return EtcdStore(settings.etcd, deployment.plan.deployment_id, me)
    return SqliteStore(settings.path, settings.allow_network_fs)


def shared(deployment: LoadedDeployment) -> bool:
    """Whether several controllers may wait for this store."""
    return deployment.settings.store.kind == "etcd"


async def run(deployment: LoadedDeployment) -> int:
    """Until SIGTERM or SIGINT; returns the exit code."""
    if shared(deployment) and not all((deployment.settings.advertised.grpc, deployment.settings.advertised.rest)):
        log.error(
            "motor_controller_config.advertise: expected this machine's own addresses, got %s: it listens on every "
            "one, and a standby could not say where it is; write them there, or give --advertise-grpc HOST:PORT and "
            "--advertise-rest URL",
            deployment.settings.advertised,
        )
        return EXIT_CONFIG
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        tokens = open_tokens(deployment.settings)
    except TokenFileError as error:
        log.error("motor_controller_config.access.tokens_file: %s", error)
        return EXIT_CONFIG
    try:
        found = deployment.settings.advertised
        tls = open_tls(deployment.settings.tls, found.grpc, found.rest, deployment.settings.revoked_file)
    except TlsError as error:
        log.error("motor_controller_config.%s", error)
        return EXIT_CONFIG

    store = make_store(deployment)  # one for all terms: what an earlier one could not give back is given back later

    def make_term() -> Term:
        return Term(deployment, store, tls)

    first = None
    try:
        if not shared(deployment):
            # Nobody is waited for; and a second controller is told of the store, not of a port that is taken.
            first = make_term()
            await first.open(lambda leader: None)
        return await _serve(deployment, make_term, first, stop, tokens, tls)
    except StoreLocked as error:
        log.error("%s", error)
        return EXIT_STORE_LOCKED
    except StoreError as error:
        log.error("%s", error)
        return EXIT_FAILED
    finally:
        if first is not None:
            await first.end("this controller is ending")


async def _serve(
    deployment: LoadedDeployment,
    make_term: Callable[[], Term],
    first: Term | None,
    stop: asyncio.Event,
    tokens: TokenFile | None,
    tls: ServerTls | None,
) -> int:
    """Doors first, then the terms behind them: a standby answers, too. StoreLocked, StoreError."""
    settings = deployment.settings
    if settings.open_doors:
        log.warning("insecure: true: anyone on the network may read and give orders: %s", settings.open_doors)
    leadership = Leadership(deployment.settings.advertised)
    if first is not None:
        leadership.begin(first)  # before the doors open: with a store of its own a controller is never a standby
    server = grpc.aio.server(options=SERVER_OPTIONS)
    control_pb2_grpc.add_ControlServicer_to_server(NodeDoor(leadership), server)  # type: ignore[no-untyped-call]
    target = join(settings.grpc.host, settings.grpc.port)
    try:
        bound = bind_streams(server, target, tls)
    except RuntimeError as error:
        log.error("gRPC: %s cannot be bound: %s; change motor_controller_config.grpc", target, error)
        return EXIT_ADDRESS
    rest = _Rest(guarded(RestDoor(leadership), settings, tokens), settings.rest.host, settings.rest.port, tls)
    rest_task = asyncio.create_task(rest.serve())
    rest_task.add_done_callback(lambda _: stop.set())
    watchdog = asyncio.create_task(feed_watchdog())
    try:
        if not await rest.up(rest_task):
            log.error(
                "REST: %s cannot be bound; change motor_controller_config.rest",
                join(settings.rest.host, settings.rest.port),
            )
            return EXIT_ADDRESS
        await server.start()
        log.info("nodes dial %s, REST on %s", join(settings.grpc.host, bound), join(*rest.address()))
        notify(f"READY=1\nSTATUS=deployment {deployment.plan.deployment_id}, standby")
        await run_terms(leadership, make_term, stop, first)
        notify("STOPPING=1")
        log.info("ending; engines keep running")
        return 0
    finally:
        watchdog.cancel()
        await server.stop(grace=0.5)
        rest.should_exit = True
        await asyncio.wait({rest_task}, timeout=3.0)


class _Rest(uvicorn.Server):
    """uvicorn without its own signal handling: the loop has one already."""

    def __init__(self, app: App, host: str, port: int, tls: ServerTls | None) -> None:
        super().__init__(
            uvicorn.Config(
                app, host=host, port=port, log_level="warning", access_log=False, lifespan="off",
                timeout_graceful_shutdown=1, **uvicorn_limits(),
            )
        )  # fmt: skip
        if tls is not None:
            self.config.load()  # it would make a context of its own, which could not be given another certificate
            self.config.ssl = tls.rest_context()

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
