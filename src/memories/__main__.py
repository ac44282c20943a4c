"""The front door of the `memory` command; it imports nothing heavy before it knows what is
asked.
"""

import gc
import os
import sys

TYPE_CHECKING = False  # as in `typing`, whose import costs 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from memories.memories import Memories
    from memories.settings import Config


def main() -> None:
    """Run the command; exit with one of the codes that its help lists."""
    if sys.argv[1:2] == ["hook"] and not {"-h", "--help"} & {
        *sys.argv[2:]
    }:  # an agent waits for it
        from memories.hooks.hook import main as run_hook

        run_hook(sys.argv[2:], _recalled, _start)
    gc.set_threshold(
        100_000
    )  # imports make many objects that stay: looking through them costs a tenth of a command
    try:
        _open_missing_streams()
        code = ask(sys.argv[1:])
    except KeyboardInterrupt:  # at any moment, also while modules are being imported
        code = _interrupted()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # what can't be written was reported, or its reader has left
    _start_wanted(sys.argv[1:])
    # The store is closed and all is said: taking the interpreter down piece by piece would cost
    # another 15 ms.
    os._exit(code)


def _recalled(asked: bytes) -> bytes | None:
    """Have the server of the store recall what a hook asks for; None if the hook has to do that."""
    from memories import __version__
    from memories.warm import client

    return client.recalled(asked, __version__)


def ask(arguments: list[str]) -> int:
    """Have the server of the store run the command, or else run it here; return the exit code."""
    from memories import __version__
    from memories.warm import client

    try:
        code = client.ask(arguments, __version__)
    except client.Lost as lost:
        if lost.once:  # with this id it is stored once, whatever the server has done
            return answer(arguments, None, lost.once)[0]
        from memories.cli import output

        return output.fail(client.LOST, 1)
    return run(arguments) if code is None else code


def _start_wanted(arguments: list[str]) -> None:
    """Start a server for the store of the command that was just run here, if a setting wants
    one.
    """
    session = sys.modules.get("memories.cli.session")
    if session is not None and session.WANTED and arguments[:1] != ["serve"]:
        _start(session.WANTED[-1])


def _start(store: str) -> None:
    """Start a server of a store."""
    from memories.warm.client import start

    start(store)


def answer(
    arguments: "Sequence[str]",
    opened: "Callable[[Config, bool], Memories] | None" = None,
    once: str = "",
) -> tuple[int, str]:
    """Run the command as a server does, or as one whose server was lost.

    Args:
        arguments: Of the command.
        opened: Gives it its memory.
        once: The id of the memory that it creates.

    Returns:
        The exit code, and what it changed, as a part of a sentence.
    """
    if arguments[:1] == ["hook"]:  # no command, but what a hook asks of a server
        from memories.hooks.recall import answer_as_server

        sys.stdout.write(answer_as_server(sys.stdin.buffer.read(), opened))
        return 0, ""
    from memories.cli import output, session

    session.OPENED.set(opened)
    session.ONCE.set(once)
    code = run(arguments)
    return code, output.changed() or ""


def run(arguments: "Sequence[str]") -> int:
    """Run the command with these arguments; print its answer or its error, and return the exit
    code.
    """
    from memories.cli import output
    from memories.errors import MemoriesError

    output.begin()
    try:
        answer = _answer(arguments)
        sys.stdout.flush()  # here, so that a reader who left is noticed
    except (MemoriesError, OSError, MemoryError) as exc:
        return output.failed(exc)
    except ImportError as exc:
        if "failed to map segment" not in str(exc):  # as a loader says that a library had no memory
            raise
        return output.failed(MemoryError())
    return answer if isinstance(answer, int) else 0


def _answer(arguments: "Sequence[str]") -> object:
    """Do what was asked; return the exit code, or something else for 0."""
    first = arguments[0] if arguments else "--help"
    if first in ("--help", "-h", "--version") and "_MEMORY_COMPLETE" not in os.environ:
        from memories import __version__
        from memories.cli import help_page, output

        output.say(__version__ if first == "--version" else help_page())
        return 0
    from memories.cli.app import run as run_command

    answer = run_command(arguments)
    if isinstance(answer, tuple):
        starts: dict[str, Callable[..., object]] = {
            "ServeMCP": _serve_mcp,
            "StartChat": _chat,
            "Serve": _serve,
            "Manage": _manage,
        }
        return starts[type(answer).__name__](*answer)
    return answer


def load_commands() -> None:
    """Import what the commands that a server answers need."""
    from importlib import import_module

    from memories.cli import COMMANDS

    for module in ("app", "text", *dict.fromkeys(name for name, _, _ in COMMANDS.values())):
        import_module(f"memories.cli.{module}")
    for module in ("recall", "recall_prompt"):  # and those that a hook asks for
        import_module(f"memories.hooks.{module}")


def _serve(config: "Config", asked: "Mapping[str, Any]") -> int:
    """Start the server that a command asked for, by its name: its folder can be deleted."""
    from importlib import import_module

    request = import_module("memories.server.sockets").ServeOptions(**asked)
    serve: Callable[..., int] = import_module("memories.server.serve").serve
    return serve(config, request, answer, load_commands)


def _manage(config: "Config", how: str) -> int:
    """Do what a command asked about a server."""
    from memories.cli.output import emit, note
    from memories.warm import manage

    if how in ("status", "stop"):
        told = manage.asked(config, how) or {"running": False}
        told = {**told, "running": False, "stopped": told["running"]} if how == "stop" else told
        rows = [f"{name}: {value}" for name, value in told.items() if value is not None]
        emit(told, lambda: "\n".join(rows))
        return 0 if told["running"] or how == "stop" else 1
    unit = manage.uninstall(config)
    if unit is None:
        note("It is not installed.")
        return 1
    shown = "\n  ".join([f"{unit.path} removed.\nNow run:", *unit.stop])
    emit(
        {"file": str(unit.path), "done": "removed", "text": unit.text, "commands": unit.stop},
        lambda: shown,
    )
    return 0


def _serve_mcp(config: "Config", shared: bool, read_only: bool) -> None:
    """Start the server that a command asked for."""
    import signal

    from memories.cli.output import note

    # the SDK makes many objects that stay: without looking through them it is there 70 ms earlier
    gc.disable()
    from memories.mcp.stdio import serve

    gc.freeze()
    gc.enable()
    if sys.stdin.isatty():
        note("This command speaks MCP; a client should start it. Press Ctrl-D to end it.")
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # the SDK would wait for another line first; nothing is lost by that
    serve(config, shared=shared, read_only=read_only)


def _chat(config: "Config", root: "Path", env_file: "Path | None", demo: bool, live: bool) -> int:
    """Start the chat that a command asked for."""
    from importlib import import_module

    start: Callable[..., int] = import_module("memories.integrations.chat").start
    return start(config, root, env_file, demo=demo, live=live)


def _interrupted() -> int:
    import signal

    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # an impatient second Ctrl-C must not cut the sentence off
    from memories.cli import output

    return output.interrupted()


def _open_missing_streams() -> None:
    """Give a process that was started with a standard stream closed an empty one, before a file
    takes its number.

    Writing to a standard output that was closed fails, so that a command which changes something
    says what it did.
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
