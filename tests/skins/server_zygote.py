"""Starts servers for tests: each is forked from a process that has loaded everything, so it is there at once."""

import json
import os
import signal
import sys


def main() -> None:
    """For each line, an environment and a store, start a server and print its process; 0 if it did not start."""
    from memories import __main__ as front_door
    from memories.skins.server import serve, watch  # noqa: F401 - what is imported here need not be in each child
    from memories.skins.warm import warm  # noqa: F401 - what is imported here need not be in each child

    front_door.load_commands()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        asked = json.loads(line)
        ours, its = os.pipe()
        child = os.fork()
        if not child:
            os.close(ours)
            _child(asked, its)
        os.close(its)
        ready = os.read(ours, 1)
        os.close(ours)
        sys.stdout.write(f"{child if ready else 0}\n")
        sys.stdout.flush()


def _child(asked: dict[str, object], ready: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    os.chdir(str(asked["folder"]))
    try:
        from memories import __main__ as front_door
        from memories.config import load_config
        from memories.skins.server import serve, watch

        config = load_config({"store": asked["store"] or None}, tell=lambda _: None)  # type: ignore[dict-item]

        def preload() -> None:
            os.write(ready, b"1")
            os.close(ready)

        os.chdir("/")
        code = serve.serve(config, watch.Asked(http=False), front_door.answer, preload)
    except BaseException as exc:  # noqa: BLE001 - a child must not go on as its parent
        sys.stderr.write(f"no server: {exc!r}\n")
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main()
