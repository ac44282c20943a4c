"""The `memory` command: it parses, calls one method of `Memories`, and prints what comes back."""

import os
import sys

import click

from memories.cli import manage, read, write
from memories.cli.session import fail
from memories.errors import ConfigError, InvalidInput, MemoriesError


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


for _command in (*write.COMMANDS, *read.COMMANDS, *manage.COMMANDS):
    app.add_command(_command)


def main() -> None:
    """Run the command; exit with 0 done, 1 error, 2 usage, 3 not stored: a duplicate."""
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()  # here, so that a reader who left is noticed
    except click.ClickException as exc:
        where = exc.ctx.command_path if isinstance(exc, click.UsageError) and exc.ctx else "memory"
        code = fail(f"{exc.format_message().rstrip('.')}; see {where} --help", 2)
    except (ConfigError, InvalidInput) as exc:
        code = fail(str(exc), 2, matches=getattr(exc, "matches", ()))
    except MemoriesError as exc:
        code = fail(str(exc), 1)
    except (KeyboardInterrupt, click.Abort):
        code = fail("stopped; what was not confirmed was not done", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; say nothing at exit either
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    # The store is closed and all is said: taking the interpreter down piece by piece would cost another 15 ms.
    os._exit(code if isinstance(code, int) else 0)
