"""The `memory` command: it parses, calls one method of `Memories`, and prints what comes back."""

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from memories.errors import ConfigError, InvalidInput, MemoriesError
from memories.skins.cli import context, serve, status, stores, turns
from memories.skins.cli import memories as write
from memories.skins.cli import search as read
from memories.skins.cli.session import fail


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from memories import __version__

        click.echo(__version__)
        context.exit()


@click.group(
    epilog='Example: memory create "The user prefers Python", then memory search "preferred language"',
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def app() -> None:
    """Persistent, shared, searchable memory for AI agents.

    Answers are JSON on a pipe and text on a terminal. Exit codes: 0 done, 1 error, 2 usage, 3 not stored: a duplicate.
    """


for _command in (
    *write.COMMANDS,
    *read.COMMANDS,
    *turns.COMMANDS,
    *context.COMMANDS,
    *serve.COMMANDS,
    *status.COMMANDS,
    *stores.COMMANDS,
):
    app.add_command(_command)


def main() -> None:
    """Run the command; exit with 0 done, 1 error, 2 usage, 3 not stored: a duplicate."""
    _open_missing_streams()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # what can't be written was reported, or its reader has left
            stream.flush()
    # The store is closed and all is said: taking the interpreter down piece by piece would cost another 15 ms.
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; print its answer or its error, and return the exit code."""
    try:
        code = app(list(arguments) or ["--help"], prog_name="memory", standalone_mode=False)
        sys.stdout.flush()  # here, so that a reader who left is noticed
    except click.ClickException as exc:
        code = fail(_usage(exc), 2)
    except (ConfigError, InvalidInput) as exc:
        code = fail(str(exc), 2, matches=getattr(exc, "matches", ()))
    except MemoriesError as exc:
        code = fail(str(exc), 1)
    except (KeyboardInterrupt, click.Abort):
        code = fail("stopped; what was not confirmed was not done", 1)
    except (BrokenPipeError, SystemExit):
        code = 0  # the reader left, for which click exits by itself
    except OSError as exc:
        code = fail(f"the system refused: {exc.strerror or exc}", 1)
    return code if isinstance(code, int) else 0


def _usage(exc: click.ClickException) -> str:
    where = exc.ctx.command_path if isinstance(exc, click.UsageError) and exc.ctx else "memory"
    dashed = isinstance(exc, click.NoSuchOption) and not exc.option_name.startswith("--")
    literal = "; put -- before text that begins with a dash" if dashed else ""
    return f"{exc.format_message().rstrip('.')}{literal}; see {where} --help"


def _open_missing_streams() -> None:
    """Give a process that was started with a standard stream closed an empty one, before a file takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
