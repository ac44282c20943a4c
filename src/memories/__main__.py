"""Entry point of the `memory` command; imports nothing heavy until the command is known."""

import gc
import os
import sys

TYPE_CHECKING = False  # the same as `typing.TYPE_CHECKING`; importing `typing` takes 3 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from memories.memories import Memories
    from memories.settings import Config

# Imports create many permanent objects. Garbage collection among them takes a tenth of a command's
# time.
_GC_THRESHOLD = 100_000


def main() -> None:
    """Run the command, and exit with one of the codes that its help lists."""
    arguments = sys.argv[1:]
    is_help = "-h" in arguments or "--help" in arguments
    if arguments[:1] == ["hook"] and not is_help:  # an agent is waiting for the hook
        from memories.hooks.hook import main as run_hook

        run_hook(arguments[1:], _ask_server_for_hook, _start_server)
    gc.set_threshold(_GC_THRESHOLD)
    try:
        _prepare_streams()
        code = run_by_server_or_here(arguments)
    except KeyboardInterrupt:  # can occur at any moment, even during imports
        import signal

        # A second Ctrl-C must not cut off the message.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from memories.cli import output

        code = output.report_interrupt()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue  # the error has been reported, or the reader has closed the pipe
    options = sys.modules.get("memories.cli.options")
    if options is not None and options.STORES_TO_SERVE and arguments[:1] != ["serve"]:
        _start_server(options.STORES_TO_SERVE[-1])  # a setting asks for a server
    # The store is already closed. Shutting down the interpreter would take another 15 ms.
    os._exit(code)


def _ask_server_for_hook(request: bytes, begin_seconds: float, seconds: float) -> bytes | None:
    """Ask the store's server to answer a hook; return None if the hook must do so itself."""
    from memories import __version__, warm

    return warm.ask_for_hook(request, __version__, begin_seconds, seconds)


def run_by_server_or_here(arguments: list[str]) -> int:
    """Ask the store's server to run the command, else run it here; return the exit code."""
    from memories import __version__, warm

    if not warm.can_be_served(arguments):  # may be an alias
        from memories.cli import expand

        arguments = expand(arguments)
    try:
        code = warm.ask(arguments, __version__)
    except warm.AnswerLost as lost:
        if lost.create_id:  # this id prevents the memory from being stored twice
            return run_for_client(arguments, None, lost.create_id)[0]
        from memories.cli import output

        return output.print_error(warm.LOST, 1)
    except warm.AnswerUnprinted as unprinted:
        from memories.cli import output

        output.begin_run()
        output.record_change(unprinted.change)
        return output.report_error(unprinted.error)
    except warm.ChangeInterrupted:
        from memories.cli import output

        output.begin_run()
        output.begin_change()
        raise
    return run(arguments) if code is None else code


def _start_server(store: str) -> None:
    from memories.warm import start

    start(store)


def run_for_client(
    arguments: "Sequence[str]",
    open_memories: "Callable[[Config, bool], Memories] | None" = None,
    create_id: str = "",
) -> tuple[int, str]:
    """Run a command that `warm.ask` would send to a server.

    A server calls this for its clients. A client calls it if it lost the connection to its server.

    Args:
        arguments: The arguments of the command.
        open_memories: Opens the memory for the command.
        create_id: The id of the memory that the command creates.

    Returns:
        The exit code, and a clause that names the change that the command made.
    """
    if arguments[:1] == ["hook"]:  # a hook's request, not a command
        from memories.hooks.model_context import answer_as_server

        sys.stdout.write(answer_as_server(sys.stdin.buffer.read(), open_memories))
        return 0, ""
    from memories.cli import options, output

    options.OPEN_MEMORIES.set(open_memories)
    options.CREATE_ID.set(create_id)
    code = run(arguments)
    return code, output.change() or ""


def run(arguments: "Sequence[str]") -> int:
    """Run the command in this process, print its output or error, and return the exit code."""
    from memories.cli import output
    from memories.errors import ConfigError, MemoriesError

    output.begin_run()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()  # flushed here to detect a closed pipe
    except (MemoriesError, OSError, MemoryError) as exc:
        return output.report_error(exc)
    except ImportError as exc:
        if "failed to map segment" not in str(exc):  # the loader's message when out of memory
            raise
        return output.report_error(MemoryError())
    except RuntimeError as exc:
        if "home directory" not in str(exc):  # the message of `Path.home` and `Path.expanduser`
            raise
        unknown = "the home folder is unknown; set HOME, and use no path that begins with ~USER"
        return output.report_error(ConfigError(unknown))
    return code if isinstance(code, int) else 0


def _dispatch(arguments: "Sequence[str]") -> object:
    """Run the command, and return its exit code; any other result means 0."""
    if "_MEMORY_COMPLETE" not in os.environ:
        page = _page(arguments[0] if arguments else "help")
        if page:
            from memories.cli import output

            output.say(page)
            return 0
    from memories.cli.app import run_command

    result = run_command(arguments)
    if not isinstance(result, tuple):
        return result
    programs: dict[str, Callable[..., object]] = {
        "StartServer": _serve,
        "StartMCP": _serve_mcp,
        "StartChat": _chat,
    }
    return programs[type(result).__name__](*result)


def _page(first: str) -> str:
    """Return the help page or version that the first argument asks for; empty for a command."""
    if first == "--version":
        from memories import __version__

        return __version__
    from memories.cli import everyday_page, help_page

    if first == "help":
        return everyday_page()
    return help_page() if first in ("--help", "-h") else ""


def load_commands() -> None:
    """Import the modules that a server needs to answer commands and hooks."""
    from importlib import import_module

    from memories.cli import COMMANDS

    for module in ("app", "text", *dict.fromkeys(name for name, _, _ in COMMANDS.values())):
        import_module(f"memories.cli.{module}")
    for module in ("model_context", "prompt_recall"):
        import_module(f"memories.hooks.{module}")


# --- long-running programs ---


def _serve(config: "Config", options: "Mapping[str, Any]") -> int:
    """Start the server. The server is imported by name, so that the program works without the
    server's folder.
    """
    from importlib import import_module

    if sys.platform == "win32":
        from memories.errors import ConfigError

        raise ConfigError(
            "memory serve needs Unix sockets and file locks that Python lacks on Windows; run it "
            "in WSL, or use a server on another machine with --store http://HOST:8765"
        )
    request = import_module("memories.server.sockets").ServeOptions(**options)
    serve: Callable[..., int] = import_module("memories.server.serve").serve
    return serve(config, request, run_for_client, load_commands)


def _serve_mcp(config: "Config", shared: bool, read_only: bool) -> None:
    import signal

    from memories.cli.output import note

    # The SDK creates many permanent objects. It loads 70 ms faster without garbage collection.
    gc.disable()
    from memories.mcp.stdio import serve

    gc.freeze()
    gc.enable()
    if sys.stdin.isatty():
        note("This command speaks MCP; a client should start it. Press Ctrl-D to end it.")
    # The SDK would wait for another line before it ends. Ending immediately loses nothing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    serve(config, shared=shared, read_only=read_only)


def _chat(config: "Config", root: "Path", env_file: "Path | None", demo: bool, live: bool) -> int:
    from importlib import import_module

    start: Callable[..., int] = import_module("memories.integrations.chat").start
    return start(config, root, env_file, demo=demo, live=live)


# --- process ---


def _prepare_streams() -> None:
    """Open an empty stream for each closed standard stream, before a file can get the stream's
    descriptor. Make the others wait for a slow reader or writer, so that no text is lost.

    Writing to a closed standard output still fails; the error says what the command changed.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            fd = os.open(os.devnull, os.O_RDWR if name == "stderr" else os.O_RDONLY)
            if fd != number:  # a lower descriptor is closed too
                os.dup2(fd, number)
                os.close(fd)
            # The stream stays open until the process ends.
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115, PTH123
        elif os.name == "posix":
            os.set_blocking(number, True)


if __name__ == "__main__":
    main()
