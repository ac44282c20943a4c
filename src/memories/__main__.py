"""The front door of the `memory` command; it imports nothing heavy before it knows what is asked."""

import contextlib
import gc
import os
import sys
from collections.abc import Sequence

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from pathlib import Path

    from memories.settings import Config

MCP_SDK = "mcp>=2.2,<3"  # the extra `server`


def main() -> None:
    """Run the command; exit with one of the codes that its help lists."""
    gc.set_threshold(100_000)  # imports make many objects that stay: looking through them costs a tenth of a command
    try:
        _open_missing_streams()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # at any moment, also while modules are being imported
        code = _interrupted()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # what can't be written was reported, or its reader has left
            stream.flush()
    # The store is closed and all is said: taking the interpreter down piece by piece would cost another 15 ms.
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; print its answer or its error, and return the exit code."""
    from memories.errors import MemoriesError
    from memories.skins.cli import output

    output.begin()
    try:
        answer = _answer(arguments)
        sys.stdout.flush()  # here, so that a reader who left is noticed
    except (MemoriesError, OSError, MemoryError) as exc:
        return output.failed(exc)
    return answer if isinstance(answer, int) else 0


def _answer(arguments: Sequence[str]) -> object:
    """Do what was asked; return the exit code, or something else for 0."""
    first = arguments[0] if arguments else "--help"
    if first in ("--help", "-h", "--version") and "_MEMORY_COMPLETE" not in os.environ:
        from memories import __version__
        from memories.skins.cli import help_page, output

        output.say(__version__ if first == "--version" else help_page())
        return 0
    from memories.skins.cli.app import run as run_command

    answer = run_command(arguments)
    if isinstance(answer, tuple):
        return (_serve_mcp if type(answer).__name__ == "ServeMCP" else _chat)(*answer)
    return answer


def _serve_mcp(config: "Config", shared: bool, read_only: bool) -> None:
    """Start the server that a command asked for; here, since no skin knows another."""
    import signal

    from memories.errors import ConfigError
    from memories.skins.cli.output import note

    gc.disable()  # the SDK makes many objects that stay: without looking through them it is there 70 ms earlier
    try:
        from memories.skins.mcp.stdio import serve
    except ImportError as exc:
        if (exc.name or "").split(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ConfigError(f"the MCP SDK is missing; run: {sys.executable} -m pip install '{MCP_SDK}'") from exc
    gc.freeze()
    gc.enable()
    if sys.stdin.isatty():
        note("This command speaks MCP; a client should start it. Press Ctrl-D to end it.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the SDK would wait for another line first; nothing is lost by that
    serve(config, shared=shared, read_only=read_only)


def _chat(config: "Config", root: "Path", env_file: "Path | None", demo: bool, live: bool) -> int:
    """Start the chat that a command asked for; here, since no skin knows another."""
    from importlib.util import find_spec

    from memories.errors import ConfigError
    from memories.skins.chat import settings

    missing = [name for name in ("langgraph", "langchain_moonshot") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} is missing; run: {sys.executable} -m pip install 'memories[chat]'")
    given = None if demo and not live else settings.read(root, env_file)
    if demo:
        from memories.skins.chat.demo import run as run_demos
        from memories.skins.cli.output import say

        return 0 if run_demos(given, say) else 1
    from memories.skins.chat.loop import Chat

    assert given is not None
    return Chat(given, config.redactor()).run()


def _interrupted() -> int:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an impatient second Ctrl-C must not cut the sentence off
    from memories.skins.cli import output

    return output.interrupted()


def _open_missing_streams() -> None:
    """Give a process that was started with a standard stream closed an empty one, before a file takes its number.

    Writing to a standard output that was closed fails, so that a command which changes something says what it did.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR if name == "stderr" else os.O_RDONLY)
            if fd != number:  # an earlier one is still to come
                os.dup2(fd, number)
                os.close(fd)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end


if __name__ == "__main__":
    main()
