"""The commands as one click group, each loaded when it is asked for."""

import os
from collections.abc import Sequence
from importlib import import_module

import click

from memories.cli import COMMANDS, help_page
from memories.errors import InvalidInput


class App(click.Group):
    """Finds a command in the table of `memories.cli` and imports only the module that defines
    it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, by purpose."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__package__}.{COMMANDS[cmd_name][0]}")
        commands: tuple[click.Command, ...] = module.COMMANDS
        return next(command for command in commands if command.name == cmd_name)

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """Return the page of all commands."""
        return help_page()


# Click suggests the nearest of these names for one that is misspelled; the commands themselves come
# from `get_command`.
_NAMES: dict[str, click.Command] = dict.fromkeys(COMMANDS, click.Command(None))
app = App("memory", commands=_NAMES, context_settings={"help_option_names": ["-h", "--help"]})


def run(arguments: Sequence[str]) -> object:
    """Run a command; return its exit code, or something else for 0.

    Raises:
        InvalidInput: Click can't make sense of the arguments; the message says why, and where to
            read on.
    """
    if "_MEMORY_COMPLETE" in os.environ:
        from click.shell_completion import add_completion_class

        from memories.cli.complete import Bash

        add_completion_class(Bash)
        try:
            return app.main(list(arguments), prog_name="memory", standalone_mode=False)
        except SystemExit as exc:  # how click ends when it has told a shell what fits
            return exc.code
    try:
        # Not `app.main`, which would print a blank line of its own when it is interrupted.
        with app.make_context("memory", list(arguments)) as context:
            return app.invoke(context)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        where = exc.ctx.command_path if isinstance(exc, click.UsageError) and exc.ctx else "memory"
        unknown = isinstance(exc, click.NoSuchOption) and not exc.possibilities
        literal = "; if it is text, put -- before it" if unknown else ""
        raise InvalidInput(
            f"{exc.format_message().rstrip('.')}{literal}; see {where} --help"
        ) from exc
