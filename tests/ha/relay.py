"""A cable that a test can cut: a TCP relay on loopback.

While it is cut, open connections stay open and carry nothing, and new ones are taken and left alone: as with a switch
that drops packets, nobody is told.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading

CHUNK = 65536


class Relay:
    """Forwards what comes to `port` to `target`, in a thread of its own."""

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", port))
        self.port = int(self._server.getsockname()[1])
        self._waker, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._peer: dict[socket.socket, socket.socket] = {}
        self._waiting: list[socket.socket] = []  # taken while it was cut
        self._cut = self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"relay {self.port}", daemon=True)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        self._cut = True
        self._wake.send(b".")

    def mend(self) -> None:
        """What was held back arrives now."""
        self._cut = False
        self._wake.send(b".")

    def close(self) -> None:
        self._closed = True
        self._wake.send(b".")
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found is self._waker:
                    self._waker.recv(CHUNK)
                    self._obey()
                elif found is self._server:
                    self._take(self._server.accept()[0])
                elif found in self._peer and not self._cut:
                    self._carry(found)
        for one in [*self._peer, *self._waiting, self._server, self._waker, self._wake]:
            one.close()
        self._selector.close()

    def _obey(self) -> None:
        if self._cut:
            for one in self._peer:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(one)
            return
        for one in self._peer:
            with contextlib.suppress(KeyError):
                self._selector.register(one, selectors.EVENT_READ)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self._take(one)

    def _take(self, near: socket.socket) -> None:
        if self._cut:
            self._waiting.append(near)
            return
        try:
            far = socket.create_connection(self._target, timeout=2.0)
        except OSError:
            near.close()
            return
        far.settimeout(10.0)
        near.settimeout(10.0)
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peer[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _carry(self, source: socket.socket) -> None:
        try:
            data = source.recv(CHUNK)
            if data:
                self._peer[source].sendall(data)
                return
        except OSError:
            pass
        for one in (source, self._peer[source]):
            del self._peer[one]
            self._selector.unregister(one)
            one.close()
