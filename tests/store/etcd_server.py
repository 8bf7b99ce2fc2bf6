"""Real etcd members on loopback, for tests: started, killed, frozen and started again by their pid.

Blocking calls: asyncio code takes `asyncio.to_thread` for those that wait (`start`, `ctl`, `leader`).
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.deployment import free_port

# etcd's defaults (100, 1000 ms) make each election and each start a second longer, and each log-in 50 ms.
FAST = ("--heartbeat-interval", "20", "--election-timeout", "200", "--bcrypt-cost", "4")
MISSING = "etcd and etcdctl are needed by these tests and not in PATH: apt-get install etcd-server etcd-client"
ROOT_PASSWORD, MOTOR_PASSWORD = "root-secret", "motor-secret"


@dataclass(frozen=True)
class TlsFiles:
    """One authority, and one certificate of it for servers and clients on loopback."""

    ca: Path
    cert: Path
    key: Path


@dataclass
class Member:
    name: str
    url: str
    peer_url: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


@dataclass
class EtcdCluster:
    """`size` members with their data below `folder`. `auth`: users root and motor, the latter for /motor/ only."""

    folder: Path
    size: int = 1
    tls: TlsFiles | None = None
    auth: bool = False
    flags: Sequence[str] = ()
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        for program in ("etcd", "etcdctl"):
            if shutil.which(program) is None:
                raise FileNotFoundError(MISSING)
        scheme = "https" if self.tls else "http"
        for index, (port, peer_port) in enumerate(zip(*[iter(free_ports(2 * self.size))] * 2, strict=True)):
            url, peer_url = f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
            self.members.append(Member(f"m{index}", url, peer_url, self.folder / f"m{index}"))

    @property
    def endpoints(self) -> list[str]:
        return [member.url for member in self.members]

    def start(self, *indices: int) -> None:
        """Start these members, or all, and wait until a put works on each. RuntimeError with the log if one ends."""
        chosen = [self.members[index] for index in indices] or self.members
        first = not (self.folder / "m0" / "data").exists()
        for member in chosen:
            self._spawn(member)
        for member in chosen:
            self._wait(member, with_user=self.auth and not first)
        if first and self.auth:
            self._enable_auth()

    def kill(self, index: int) -> None:
        """SIGKILL; the data stay."""
        process = self.members[index].process
        assert process is not None
        process.kill()
        process.wait()

    def freeze(self, index: int) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        process = self.members[index].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        process = self.members[index].process
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all. The data stay."""
        for index, member in enumerate(self.members):
            if member.running:
                self.kill(index)

    def leader(self) -> int:
        """The index of etcd's own leader. RuntimeError while there is none."""
        running = [member for member in self.members if member.running]
        for line in json.loads(self.ctl("endpoint", "status", "-w", "json", members=running)):
            status = line["Status"]
            if status["header"]["member_id"] == status.get("leader"):
                return [member.url for member in self.members].index(line["Endpoint"])
        raise RuntimeError("etcd has no leader")

    def ctl(self, *arguments: str, members: Sequence[Member] = (), with_user: bool = True, timeout: str = "2s") -> str:
        """What etcdctl prints; it is the judge that shares no code with the store. RuntimeError if it fails."""
        urls = ",".join(member.url for member in members or self.members if member.running)
        command = ["etcdctl", "--endpoints", urls, "--command-timeout", timeout, "--dial-timeout", "1s"]
        if self.tls:
            command += ["--cacert", str(self.tls.ca), "--cert", str(self.tls.cert), "--key", str(self.tls.key)]
        if self.auth and with_user:
            command += ["--user", f"root:{ROOT_PASSWORD}"]
        result = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, env={"ETCDCTL_API": "3"}, check=False
        )
        if result.returncode:
            raise RuntimeError(f"etcdctl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def _spawn(self, member: Member) -> None:
        assert not member.running, f"{member.name} runs already"
        member.folder.mkdir(parents=True, exist_ok=True)
        command = [
            *("etcd", "--name", member.name, "--data-dir", str(member.folder / "data"), "--logger", "zap"),
            *("--listen-client-urls", member.url, "--advertise-client-urls", member.url),
            *("--listen-peer-urls", member.peer_url, "--initial-advertise-peer-urls", member.peer_url),
            *("--initial-cluster", ",".join(f"{m.name}={m.peer_url}" for m in self.members)),
            *("--initial-cluster-state", "new", *FAST, *self.flags),
        ]
        if self.tls:
            command += ["--cert-file", str(self.tls.cert), "--key-file", str(self.tls.key)]
            command += ["--trusted-ca-file", str(self.tls.ca), "--client-cert-auth"]
        with (member.folder / "log").open("ab") as log:
            member.process = subprocess.Popen(command, stdout=log, stderr=log)

    def _wait(self, member: Member, with_user: bool, seconds: float = 30.0) -> None:
        # The port opens before the member can serve: only a write that works says that it is there.
        deadline = time.monotonic() + seconds
        while True:
            assert member.process is not None
            if member.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{member.name} does not serve: {(member.folder / 'log').read_text()[-2000:]}")
            try:
                # etcdctl waits a second after a connection that was refused; a put before there is a leader is lost
                socket.create_connection(("127.0.0.1", int(member.url.rpartition(":")[2]))).close()
                self.ctl("put", "/is-it-there", member.name, members=[member], with_user=with_user, timeout="700ms")
                return
            except (ConnectionError, RuntimeError):
                time.sleep(0.03)

    def _enable_auth(self) -> None:
        for arguments in (
            ("user", "add", f"root:{ROOT_PASSWORD}"),
            ("user", "grant-role", "root", "root"),
            ("role", "add", "motor"),
            ("role", "grant-permission", "motor", "--prefix=true", "readwrite", "/motor/"),
            ("user", "add", f"motor:{MOTOR_PASSWORD}"),
            ("user", "grant-role", "motor", "motor"),
            ("auth", "enable"),
        ):
            self.ctl(*arguments, with_user=False)


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, below the ephemeral ones: no outgoing connection takes one before a member does."""
    return [free_port() for _ in range(count)]


def make_tls(folder: Path) -> TlsFiles:
    """A fresh authority and a certificate for 127.0.0.1 and localhost, made with openssl."""
    folder.mkdir(parents=True, exist_ok=True)
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    end = ("-days", "2", "-extfile", "extensions", "-out", "end.crt")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for command in (
        ("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=test"),
        ("req", *new_key, "-keyout", "end.key", "-out", "end.csr", "-subj", "/CN=loopback"),
        ("x509", "-req", "-in", "end.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", *end),
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    return TlsFiles(folder / "ca.crt", folder / "end.crt", folder / "end.key")
