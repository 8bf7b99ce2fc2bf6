"""A small program that behaves like `vllm serve` on several nodes, without a model.

It takes vLLM's command line, prints vLLM's stage lines, has one child process per worker with vLLM's
titles, meets the other ranks at the master's port (rank 0's worker listens there, the others dial), and
serves the API on the master. A request is a step of all workers: one that is frozen holds it up for ever.
Like vLLM 0.32 (facts of that version): a master does not notice that a follower died, a follower does not
notice that the master died, and a headless process exits with 0 some time after its worker was killed.

It can be told to misbehave by SCRIPTED_ENGINE in its environment, JSON with these keys, all optional, or
by a file `<node rank>.json` or `all.json` with the same content in the folder that its key `control`
names:

    slow_start      seconds spent loading weights                        (0)
    stage_pause     seconds between two stages                           (0.01)
    exit_at         [stage, code]: exit there; stages as in STAGES
    exit_after      [seconds, code]: exit so long after it is ready
    hang_at         stage at which it stops for ever, before its line is printed
    ignore_sigterm  true: only SIGKILL ends it
    stop_seconds    from SIGTERM to the end; the real one takes 13 when headless        (0.05)
    worker_exit_seconds   from a worker's death to the exit of a headless parent, 5 in the real one (0.3)
    port_taken_seconds    until a taken master port ends it, 92 in the real one         (0.2)
    grandchild      true: starts a process in a session of its own that outlives it
    health          HTTP status of /health when ready; looked up anew each time         (200)
    hang_requests   true: requests get no answer while /health is 200; looked up anew all the time
    request_status  HTTP status of the answer to a request; looked up anew each time     (200)
    step_seconds    that every worker of the engine computes for a request; looked up anew (0.002)
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VERSION = "0.32.0"
STAGES = ("process", "config", "engine", "rendezvous", "joined", "weights", "kv_cache", "warm_up", "http")
PR_SET_PDEATHSIG = 1
LISTENERS: list[socket.socket] = []  # kept open: the port stays taken while rank 0 lives


def read_behaviour(rank: int) -> dict[str, Any]:
    """SCRIPTED_ENGINE, then the files of its control folder on top."""
    behaviour = json.loads(os.environ.get("SCRIPTED_ENGINE", "{}"))
    folder = behaviour.get("control")
    for name in ("all.json", f"{rank}.json"):
        if folder and (path := Path(folder) / name).exists():
            behaviour.update(json.loads(path.read_text()))
    return behaviour


def parse(argv: list[str]) -> argparse.Namespace:
    """The part of vLLM's command line that matters here; everything else is accepted."""
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--nnodes", "-n", type=int, default=1)
    parser.add_argument("--node-rank", "-r", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    parser.add_argument("--prefill-context-parallel-size", "-pcp", type=int, default=1)
    parser.add_argument("--data-parallel-size", "-dp", type=int, default=1)
    parser.add_argument("--data-parallel-rank", "-dpn", type=int)
    parser.add_argument("--served-model-name", nargs="*")
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    parser.add_argument("--ssl-keyfile")
    parser.add_argument("--ssl-certfile")
    return parser.parse_known_args(argv)[0]


class Places:
    """Which global ranks this node holds, counted as vLLM counts them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        a = arguments
        self.group = a.tensor_parallel_size * a.pipeline_parallel_size * a.prefill_context_parallel_size
        self.world = self.group * a.data_parallel_size
        self.local = max(1, self.world // a.nnodes)
        self.first = self.local * a.node_rank

    def ranks(self) -> list[tuple[int, int]]:
        """(global rank, local rank) of each worker of this node."""
        return [(self.first + index, index) for index in range(self.local)]


def say(name: str, text: str, source: str = "engine.py:1") -> None:
    """One line as vLLM prints it; a single write, because several processes share the log."""
    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime())
    os.write(1, f"({name} pid={os.getpid()}) INFO {stamp} [{source}] {text}\n".encode())


def die_with_parent() -> None:
    """Workers do not outlive the process that started them, as multiprocessing daemons do not."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# --- workers


def worker_main(arguments: argparse.Namespace, rank: int, local_rank: int) -> int:
    """One worker: rendezvous, then wait to be told to end. Talks to its parent through stdin and stdout's
    log.
    """
    die_with_parent()
    behaviour = read_behaviour(arguments.node_rank)
    name = f"Worker_TP{rank}"
    if behaviour.get("ignore_sigterm"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    at = Script(behaviour, name, notify=True)
    places = Places(arguments)
    address, port = arguments.master_addr, arguments.master_port
    at.stage(
        "rendezvous",
        f"world_size={places.world} rank={rank} local_rank={local_rank} "
        f"distributed_init_method=tcp://{address}:{port} backend=gloo",
        "parallel_state.py:1400",
    )
    meeting = None
    if places.world > 1:
        try:
            meeting = meet(address, port, rank, places.world)
        except OSError as error:
            time.sleep(behaviour.get("port_taken_seconds", 0.2))
            sys.stderr.write(
                f"({name} pid={os.getpid()}) ERROR torch.distributed.DistNetworkError: The server socket "
                f"has failed to listen on any local network address. port: {port}, useIpv6: false, "
                f"code: -98, name: EADDRINUSE, message: {error.strerror}\n"
            )
            return 1
    at.stage(
        "joined",
        f"rank {rank} in world size {places.world} is assigned as DP rank 0, PP rank 0, PCP rank 0, "
        f"TP rank {rank}, EP rank N/A",
        "parallel_state.py:1650",
    )
    at.stage("weights", f"Starting to load model {arguments.model}...", "gpu_model_runner.py:1")
    time.sleep(behaviour.get("slow_start", 0))
    say(name, "Model loading took 0.01 GiB memory and 0.01 seconds", "gpu_model_runner.py:2")
    at.stage("kv_cache", "CPU KV cache size: 4,096 tokens", "kv_cache_utils.py:1")
    at.tell("ready")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour.get("ignore_sigterm") else lambda *_: os._exit(0))
    if rank == 0:
        lead_steps(at, meeting or [], arguments.node_rank)
    elif local_rank == 0 and not arguments.headless:  # of another group of one world: it answers for itself
        threading.Thread(target=follow_steps, args=(meeting or [], arguments.node_rank), daemon=True).start()
        lead_steps(at, [], arguments.node_rank)
    else:
        follow_steps(meeting or [], arguments.node_rank)
    while True:
        time.sleep(3600)


def compute(node_rank: int) -> None:
    """Use processor time, as a step does."""
    end = time.monotonic() + float(read_behaviour(node_rank).get("step_seconds", 0.002))
    while time.monotonic() < end:
        pass


def lead_steps(at: Script, peers: list[socket.socket], node_rank: int) -> None:
    """Rank 0: for each word of its parent one step of all ranks, with the parent's leave to wait for ever."""
    for _ in iter(sys.stdin.buffer.readline, b""):
        try:
            for peer in peers:
                peer.sendall(b"step\n")
            compute(node_rank)
            done = all(peer.recv(5) for peer in peers)
        except OSError:
            done = False
        at.tell("done" if done else "broken")


def follow_steps(peers: list[socket.socket], node_rank: int) -> None:
    """The others do their part until rank 0 is gone, which they do not notice otherwise."""
    with contextlib.suppress(OSError):
        for peer in peers:
            while peer.recv(5):
                compute(node_rank)
                peer.sendall(b"done\n")


def meet(address: str, port: int, rank: int, world: int) -> list[socket.socket]:
    """Rank 0 listens and waits for all others; they dial, for ever, and wait for its word. The connections to the
    peers. OSError: port taken.
    """
    if rank == 0:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("", port))
        listener.listen(world)
        arrived: dict[bytes, socket.socket] = {}
        while len(arrived) < world - 1:
            peer, _ = listener.accept()
            word = peer.makefile("rb").readline()
            if word:
                arrived[word] = peer
        for peer in arrived.values():
            peer.sendall(b"go\n")
        LISTENERS.append(listener)
        return list(arrived.values())
    while True:
        with contextlib.suppress(OSError):
            peer = socket.create_connection((address, port), timeout=5)
            peer.settimeout(None)
            peer.sendall(b"%d\n" % rank)
            if peer.makefile("rb").readline() == b"go\n":
                return [peer]
        time.sleep(0.05)


# --- what it was told to do


class Script:
    """Prints stage lines and does at each stage what the behaviour says."""

    def __init__(self, behaviour: dict[str, Any], name: str, notify: bool = False) -> None:
        self.behaviour = behaviour
        self.name = name
        self.notify = notify

    def stage(self, stage: str, text: str, source: str = "engine.py:1") -> None:
        time.sleep(self.behaviour.get("stage_pause", 0.01))
        if self.behaviour.get("hang_at") == stage:
            while True:
                time.sleep(3600)
        say(self.name, text, source)
        at, code = self.behaviour.get("exit_at", ["", 0])
        if at == stage:
            if not self.notify:
                os._exit(code)
            self.tell(f"exit {code}")
            time.sleep(3600)

    def tell(self, word: str) -> None:
        """Workers tell their parent through a pipe of their own."""
        if self.notify:
            os.write(int(os.environ["SCRIPTED_PIPE"]), word.encode() + b"\n")


# --- the parent


class Engine:
    """The process that `vllm serve` would be."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.behaviour = read_behaviour(arguments.node_rank)
        self.name = "MainProcess" if arguments.headless else "APIServer"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.pipes: list[int] = []
        self.words: list[str] = []  # of the workers
        self.stepping = threading.Lock()
        self.stopping = threading.Event()

    def run(self) -> int:
        arguments, at = self.arguments, Script(self.behaviour, self.name)
        if self.behaviour.get("ignore_sigterm"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        if not arguments.headless:
            say(self.name, f"version {VERSION}", "utils.py:325")
        at.stage("process", f"non-default args: {{'model_tag': '{arguments.model}'}}", "utils.py:261")
        at.stage("config", "Resolved architecture: LlamaForCausalLM", "model.py:600")
        say(self.name, "Using max model len 512", "model.py:1700")
        if arguments.headless:
            engine = (
                f"Launching vLLM (v{VERSION}) headless multiproc executor, with head node address "
                f"{arguments.master_addr}:{arguments.master_port} for torch.distributed process group."
            )
        else:
            engine = f"Initializing a V1 LLM engine (v{VERSION}) with config: model='{arguments.model}'"
        at.stage("engine", engine, "serve.py:141")
        if self.behaviour.get("grandchild"):
            subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.start_workers()
        code = self.wait_for_workers()
        if code is not None:
            return self.end(code)
        if arguments.headless:
            return self.serve_headless()
        at.stage("warm_up", "init engine (profile, create kv cache, warmup model) took 0.01 seconds", "core.py:300")
        return self.serve_api(at)

    def start_workers(self) -> None:
        for rank, local_rank in Places(self.arguments).ranks():
            read, write = os.pipe()
            os.set_inheritable(write, True)
            self.workers.append(
                subprocess.Popen(
                    [
                        f"VLLM::Worker_TP{rank}",
                        __file__,
                        f"--scripted-worker={rank}:{local_rank}",
                        *sys.argv[1:],
                    ],
                    executable=sys.executable,
                    env={**os.environ, "SCRIPTED_PIPE": str(write)},
                    pass_fds=(write,),
                    stdin=subprocess.PIPE,
                )
            )
            os.close(write)
            self.pipes.append(read)

    def wait_for_workers(self) -> int | None:
        """None when all workers are ready; else the code to exit with."""
        words = self.words
        threads = [threading.Thread(target=self.read_words, args=(pipe, words), daemon=True) for pipe in self.pipes]
        for thread in threads:
            thread.start()
        while not self.stopping.wait(0.02):
            if told := [word for word in words if word.startswith("exit ")]:
                return int(told[0].split()[1])
            if words.count("ready") == len(self.workers):
                return None
            if (code := self.dead_worker()) is not None:
                return code
        return 0

    def read_words(self, pipe: int, words: list[str]) -> None:
        with os.fdopen(pipe, "r") as file:
            words.extend(iter(lambda: file.readline().strip(), ""))

    def step(self) -> bool:
        """One step of all workers, however long it takes; False if a rank is gone."""
        with self.stepping:
            self.words.clear()
            leader = self.workers[0].stdin
            assert leader is not None
            try:
                leader.write(b"step\n")
                leader.flush()
            except OSError:
                return False
            while not self.words:
                time.sleep(0.002)
            return self.words[0] == "done"

    def dead_worker(self) -> int | None:
        """Exit code of the parent if one of its workers ended: 1 while it starts."""
        for worker in self.workers:
            if worker.poll() is not None:
                say(self.name, f"Worker proc VllmWorker-0 died unexpectedly (exit code: {worker.returncode})")
                sys.stderr.write("RuntimeError: Engine core initialization failed. Failed core proc(s): {}\n")
                return 1
        return None

    def serve_headless(self) -> int:
        """As vLLM: it does not notice the master's death, and exits with 0 a while after its worker's."""
        deadline = self.exit_deadline()
        while not self.stopping.wait(0.05):
            if time.monotonic() > deadline:
                return self.end(self.behaviour["exit_after"][1])
            for worker in self.workers:
                if worker.poll() is not None:
                    code = worker.returncode
                    say(self.name, f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code})")
                    time.sleep(self.behaviour.get("worker_exit_seconds", 0.3))
                    return self.end(0)
        return self.end(0, wait=True)

    def serve_api(self, at: Script) -> int:
        """The master serves, and does not notice that followers died."""
        a = self.arguments
        at.stage("http", f"Starting vLLM server on http://{a.host or '0.0.0.0'}:{a.port}", "launcher.py:40")
        try:
            server = make_server(a, self.step)
        except OSError as error:
            sys.stderr.write(f"OSError: [Errno {error.errno}] Address already in use: port {a.port}\n")
            return self.end(1)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.write(1, b"INFO:     Application startup complete.\n")
        deadline = self.exit_deadline()
        while not self.stopping.wait(0.05):
            if time.monotonic() > deadline:
                return self.end(self.behaviour["exit_after"][1])
            if any(worker.poll() is not None for worker in self.workers):
                say(self.name, "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)")
                return self.end(0)
        say(self.name, "[shutdown] API server: shutdown triggered", "launcher.py:300")
        return self.end(0, wait=True)

    def exit_deadline(self) -> float:
        after = self.behaviour.get("exit_after")
        return time.monotonic() + after[0] if after else float("inf")

    def end(self, code: int, wait: bool = False) -> int:
        if wait:
            time.sleep(self.behaviour.get("stop_seconds", 0.05))
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
        return code


class BoundedServer(http.server.ThreadingHTTPServer):
    """Reuses the address as uvicorn does; knows its port's family."""

    daemon_threads = True
    allow_reuse_address = True


def make_server(arguments: argparse.Namespace, step: Callable[[], bool]) -> BoundedServer:
    """/health, /v1/models, /v1/completions and /metrics on the API address. OSError if the port is taken.

    `step` does a request's work.
    """
    names = arguments.served_model_name or [arguments.model]
    served = {"requests": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self.answer(read_behaviour(arguments.node_rank).get("health", 200), b"")
            elif self.path == "/v1/models":
                models = [{"id": name, "object": "model", "owned_by": "vllm"} for name in names]
                self.answer(200, json.dumps({"object": "list", "data": models}).encode())
            elif self.path == "/metrics":
                text = 'vllm:num_requests_running{engine="0"} 0.0\n'
                counters = ("generation_tokens_total", "prompt_tokens_total", "iteration_tokens_total_count")
                text += "".join(f'vllm:{name}{{engine="0"}} {served["requests"]}.0\n' for name in counters)
                self.answer(200, text.encode(), "text/plain")
            else:
                self.answer(404, b'{"detail":"Not Found"}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            if self.path not in ("/v1/completions", "/v1/chat/completions"):
                self.answer(404, b'{"detail":"Not Found"}')
                return
            while read_behaviour(arguments.node_rank).get("hang_requests"):
                time.sleep(0.05)
            status = read_behaviour(arguments.node_rank).get("request_status", 200)
            if status != 200 or not step():
                self.answer(status if status != 200 else 500, b'{"error":{"message":"EngineCore failed"}}')
                return
            served["requests"] += 1
            text = "Paris"
            choice = {"index": 0, "text": text, "finish_reason": "length"}
            if "chat" in self.path:
                choice["message"] = {"role": "assistant", "content": text}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {
                "id": "cmpl-1", "object": "text_completion", "created": int(time.time()),
                "model": body.get("model", names[0]), "choices": [choice], "usage": usage,
            }  # fmt: skip
            self.answer(200, json.dumps(answer).encode())

        def answer(self, code: int, data: bytes, kind: str = "application/json") -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            os.write(1, f'INFO:     {self.client_address[0]} - "{format % args}"\n'.encode())

    if ":" in arguments.host:
        BoundedServer.address_family = socket.AF_INET6
    server = BoundedServer((arguments.host, arguments.port), Handler)
    if arguments.ssl_certfile:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(arguments.ssl_certfile, arguments.ssl_keyfile)
        # The handshake belongs to the request's own thread: a silent client must not hold up the others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def main() -> int:
    argv = sys.argv[1:]
    if argv and argv[0].startswith("--scripted-worker="):
        rank, local_rank = map(int, argv.pop(0).partition("=")[2].split(":"))
        return worker_main(parse(argv), rank, local_rank)
    return Engine(parse(argv)).run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
