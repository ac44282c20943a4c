"""A server with the pages, and its token."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memories import Memories, load_config


class Site(NamedTuple):
    """A running server: its URL, its owner's token, and its memories."""

    url: str
    token: str
    memories: Memories


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Site]:
    """Serve an empty memory that searches only by words, during the block."""
    import uvicorn

    from memories.identity import tokens
    from memories.server import app
    from memories.server.pages.routes import routes as page_routes

    home = folder / "home"
    home.mkdir(mode=0o700)
    config = load_config(
        {"embedder": "none"}, environment={"MEMORY_HOME": str(home)}, folder=folder
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        built = app.build(config, app.Options(port=port, routes=page_routes()))
        server = uvicorn.Server(
            uvicorn.Config(built, log_level="warning", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        with Memories(config=config, embedder="none") as memories:
            yield Site(f"http://127.0.0.1:{port}", tokens.own(home), memories)
        server.should_exit = True
        thread.join()
