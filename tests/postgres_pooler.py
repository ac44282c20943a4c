"""Connection poolers for a PostgreSQL server in tests: PgBouncer, if it is installed, and a small
one of our own.
"""

import contextlib
import os
import pwd
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from postgres_node import TIMEOUT, Node, free_port

_SSL, _CANCEL = 80877103, 80877102  # request codes in the place of a protocol version
_IDLE = b"I"


@contextlib.contextmanager
def pgbouncer(node: Node, **settings: object) -> Iterator[str]:
    """Run PgBouncer with one connection to the server, which clients use in turn; yield the URL."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs pgbouncer")
    port, user = free_port(), "nobody" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="memories-pooler-") as folder:
        (Path(folder) / "users").write_text('"postgres" ""\n')
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": f"{folder}/users",
            "pool_mode": "transaction",
            "default_pool_size": 1,
            **settings,
        }
        config = Path(folder) / "ini"
        config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={node.port}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items())
        )
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
        Path(folder).chmod(0o755)
        process = subprocess.Popen(
            [program, "-q", str(config)], user=user, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + TIMEOUT
            while not _listens(port):
                assert process.poll() is None, "pgbouncer ended"
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            process.kill()
            process.wait(300)


def _listens(port: int) -> bool:
    """Return whether a port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def small_pooler(node: Node) -> Iterator[str]:
    """Share one session of the server among all clients, transaction by transaction; yield the
    URL.
    """
    upstream = socket.create_connection(("127.0.0.1", node.port))
    body = (
        struct.pack("!I", 196608) + b"user\0postgres\0database\0postgres\0client_encoding\0UTF8\0\0"
    )
    upstream.sendall(struct.pack("!I", len(body) + 4) + body)
    welcome = b""
    kind, message = _message(upstream)
    while kind != b"Z":
        welcome += message
        kind, message = _message(upstream)
    listener = socket.create_server(("127.0.0.1", 0))
    turn = threading.Lock()
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = listener.accept()
                threads.append(
                    threading.Thread(
                        target=_serve, args=(client, upstream, welcome + message, turn)
                    )
                )
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/postgres"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(TIMEOUT)
        upstream.close()
        for thread in threads:
            thread.join(TIMEOUT)


def _serve(
    client: socket.socket, upstream: socket.socket, welcome: bytes, turn: threading.Lock
) -> None:
    """Forward the messages of a client, which has the session for itself during a transaction."""
    holds = False
    with client, contextlib.suppress(OSError, EOFError):
        while True:
            (size,) = struct.unpack("!I", _exactly(client, 4))
            code = struct.unpack("!I", _exactly(client, size - 4)[:4])[0]
            if code not in (_SSL, _CANCEL):
                break
            client.sendall(b"N")
        client.sendall(welcome)
        while True:
            kind, message = _message(client)
            if kind == b"X":
                return
            if not holds:
                turn.acquire()
                holds = True
            upstream.sendall(message)
            if kind in (b"Q", b"S", b"c", b"f"):  # their answers end with the state
                state = _answer(upstream, client)
                if state == _IDLE:
                    turn.release()
                    holds = False
    if holds:
        turn.release()


def _answer(upstream: socket.socket, client: socket.socket) -> bytes:
    """Pass an answer on; return the state of the transaction, or b"" if the server waits for the
    rows of a COPY.
    """
    while True:
        kind, message = _message(upstream)
        client.sendall(message)
        if kind == b"Z":
            return message[5:6]
        if kind == b"G":
            return b""


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    """Read one message of PostgreSQL's protocol; return its type and its bytes."""
    head = _exactly(source, 5)
    return head[:1], head + _exactly(source, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(source: socket.socket, size: int) -> bytes:
    """Read exactly this many bytes."""
    found = b""
    while len(found) < size:
        piece = source.recv(size - len(found))
        if not piece:
            raise EOFError
        found += piece
    return found
