"""Searches over the HTTP API: their time in a client, compared with the same searches in one
process.
"""

import http.client
import socket
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import uvicorn

from memories import Config, Memories
from memories.identity import tokens
from memories.server.app import Options, build
from memories.server.http import HttpProtocol


class Searched(NamedTuple):
    """The times of searches, in milliseconds.

    Attributes:
        api: The median and the 95th percentile over HTTP, with one persistent connection.
        inside: The same in one process, without a server.
        api_cpu: CPU time of one search over HTTP, of client and server in total. A busy machine
            changes it less than wall time.
        inside_cpu: CPU time of one search inside the process.
    """

    api: tuple[float, float]
    inside: tuple[float, float]
    api_cpu: float
    inside_cpu: float


def searches(config: Config, queries: Sequence[str]) -> Searched:
    """Measure the same queries both ways, one after the other so that a busy machine slows both.

    Args:
        config: Names the store and the embedder.
        queries: What is asked; the first one warms both up.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    settings = uvicorn.Config(
        build(config, Options(port=port)), http=HttpProtocol, ws="none", log_level="warning"
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    line = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Authorization": f"Bearer {tokens.own(config.home)}"}
    api: list[float] = []
    inside: list[float] = []
    api_cpu: list[float] = []
    inside_cpu: list[float] = []
    with Memories(config=config) as memories:
        for query in queries:
            begun, worked = time.perf_counter(), time.process_time()
            line.request("GET", f"/api/memories?q={quote(query)}", headers=headers)
            answer = line.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the server answered {answer.status}")
            api.append(time.perf_counter() - begun)
            api_cpu.append(time.process_time() - worked)
            begun, worked = time.perf_counter(), time.process_time()
            memories.search(query)
            inside.append(time.perf_counter() - begun)
            inside_cpu.append(time.process_time() - worked)
    line.close()
    server.should_exit = True
    thread.join()
    return Searched(
        _told(api[1:]), _told(inside[1:]), _told(api_cpu[1:])[0], _told(inside_cpu[1:])[0]
    )


def _told(seconds: Sequence[float]) -> tuple[float, float]:
    middle, late = np.percentile(np.array(seconds) * 1000, [50, 95])
    return round(float(middle), 2), round(float(late), 2)
