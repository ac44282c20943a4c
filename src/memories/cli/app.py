"""The click application: finds a command, runs it, and formats its help."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

import click

from memories.cli import ALIASES, COMMANDS, help_page
from memories.cli.output import say
from memories.errors import InvalidInput
from memories.guard.validate import add_tags

TIME = (
    "TIME is a date (2024-05-31), an ISO 8601 time (2024-05-31T14:00Z), a time span before now "
    '(30m, 12h, 7d, 2w, 3mo), or words ("yesterday", "last week"). It is local unless it contains '
    "a time zone."
)

_TEXTS = ("content", "query")  # arguments that people forget to quote
_PATHS = ("FILE", "FOLDER", "PATH")  # placeholders of options that take a path


class App(click.Group):
    """Finds a command in the table in `memories.cli`, and imports only that command's module."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands, grouped by purpose."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command by its name or an alias, or None if there is none."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__package__}.{COMMANDS[cmd_name][0]}")
        commands: tuple[click.Command, ...] = module.COMMANDS
        return next(command for command in commands if command.name == cmd_name)

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """Return the page that lists all commands."""
        return help_page()


# Only the names matter: click suggests one of them if a name is misspelled. `get_command` returns
# the commands.
_NAMES: dict[str, click.Command] = dict.fromkeys(COMMANDS, click.Command(None))
app = App("memory", commands=_NAMES, context_settings={"help_option_names": ["-h", "--help"]})


def run_command(arguments: Sequence[str]) -> object:
    """Run a command and return its exit code; a result that is not a number counts as 0.

    Raises:
        InvalidInput: Click rejected the arguments. The message says why, and where to find help.
    """
    if "_MEMORY_COMPLETE" in os.environ:
        return _complete(arguments)
    try:
        # `app.main` would print an extra blank line on Ctrl-C.
        with app.make_context("memory", list(arguments)) as context:
            return app.invoke(context)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.exceptions.NoArgsIsHelpError as exc:  # a group was called without a command
        say(exc.ctx.get_help())
        return 0
    except click.ClickException as exc:
        raise InvalidInput(_describe(exc, arguments)) from exc


def _describe(error: click.ClickException, arguments: Sequence[str]) -> str:
    message = error.format_message().rstrip(".")
    if " (Did you mean one of: " in message:
        message = message.replace("(Did you mean one of: ", "Did you mean ").removesuffix(")")
    path = "memory"
    if isinstance(error, click.UsageError) and error.ctx:
        path = error.ctx.command_path
        if message.startswith("Got unexpected extra argument"):
            quoted = _quote_text(error.ctx, arguments)
            return (
                f"put the text in quotes: {quoted}" if quoted else f"{message}; see {path} --help"
            )
    elif arguments and arguments[0] in COMMANDS:  # errors from a command's parser have no context
        path = f"memory {arguments[0]}"
    if isinstance(error, click.NoSuchOption):
        message = _describe_option(error, message)
    see = " See" if message.endswith("?") else "; see"
    return f"{message}{see} {path} --help"


def _describe_option(error: click.NoSuchOption, message: str) -> str:
    """Return the message about an unknown option, with the remedy for a common mistake."""
    name = error.option_name
    unknown = f"No such option '{name}'"
    if name == "--json":
        return f"{unknown}; use --format json"
    command = error.ctx.command if error.ctx else None
    if isinstance(command, click.Group):
        return f"{unknown}; options follow the command, as in memory list --limit 3"
    parameters = command.params if command else []
    arguments = {row.name for row in parameters if isinstance(row, click.Argument)}
    if name.lstrip("-") in arguments:
        return f"{unknown}; give the text without an option"
    return message if error.possibilities else f"{message}; if it is text, put -- before it"


class _Word(str):
    """A word on a command line, compared by identity, because the same word may occur twice."""

    __slots__ = ()


def _quote_text(context: click.Context, arguments: Sequence[str]) -> str:
    """Return a command line with its text in quotes; empty if the command takes no text."""
    command, depth = context.command, len(context.command_path.split()) - 1
    parameters = [row for row in command.params if isinstance(row, click.Argument)]
    if not parameters or parameters[-1].name not in _TEXTS:
        return ""
    words = [_Word(argument) for argument in arguments[depth:]]
    values, extra, _ = command.make_parser(context).parse_args(list(words))
    first = values[parameters[-1].name]
    text = " ".join([first, *extra])
    line = []
    for word in words:
        if word is first:
            line.append(_quote(text))
        elif not any(word is loose for loose in extra):
            line.append(_quote(word))
    return " ".join([*context.command_path.split(), *line])


def _quote(word: str) -> str:
    """Quote a word for a shell if necessary, preferably with double quotes."""
    import shlex

    quoted = shlex.quote(word)
    if quoted == word or set(word) & set('"$`\\!'):
        return quoted
    return f'"{word}"'


def _complete(arguments: Sequence[str]) -> object:
    from click.shell_completion import add_completion_class

    from memories.cli.complete import Bash

    add_completion_class(Bash)
    try:
        return app.main(list(arguments), prog_name="memory", standalone_mode=False)
    except SystemExit as exc:  # click exits after it has printed the completions
        return exc.code


def completing(kind: str) -> Callable[..., Any]:
    """Return a function that completes a value with names from the store.

    See `complete.complete` for the kinds.
    """

    def run(context: click.Context, _parameter: click.Parameter, beginning: str) -> Any:
        from memories.cli.complete import complete  # imported only for a completion

        return complete(kind, context, beginning)

    return run


def check_path(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """Return the path in a parameter; refuse an empty one, which would mean the current folder."""
    if path == "":
        raise click.BadParameter("the path is empty", context, parameter)
    return path


class Option(click.Option):
    """A click option with a help section and, optionally, a parser and a group for its value.

    An option that takes one value may be given only once; click would silently use the last value.
    """

    def __init__(
        self,
        *declarations: Any,
        section: str = "Options",
        values: Sequence[str] = (),
        kind: str = "",
        parse: Callable[[str], Any] | None = None,
        group: str = "",
        **settings: Any,
    ) -> None:
        """Define the option.

        Args:
            *declarations: See `click.Option`.
            section: Its heading in the help.
            values: Words that a shell offers as completions; other values are also accepted.
            kind: The kind of names in the store that a shell offers as completions; see
                `completing`.
            parse: Converts the value's text.
            group: The command's parameter that collects this and other options in a dict; empty if
                the option is itself a parameter.
            **settings: See `click.Option`.
        """
        self.section = section
        self.parse = parse
        self.group = group
        self.is_single = not settings.get("is_flag") and not settings.get("multiple")
        if values:

            def complete(_: click.Context, _option: click.Parameter, beginning: str) -> list[str]:
                return [value for value in values if value.startswith(beginning)]

            settings["shell_complete"] = complete
        if kind:
            settings["shell_complete"] = completing(kind)
        if self.is_single:
            settings["multiple"] = True
        if group:
            settings["expose_value"] = False
        super().__init__(*declarations, callback=self._accept, **settings)

    def collect(self, context: click.Context, value: Any) -> None:
        """Add the value to the option's group; None means that the option was not given."""
        group = context.params.setdefault(self.group, {})
        if value is not None:
            group[self.name] = value

    def _accept(self, context: click.Context, option: click.Parameter, value: Any) -> Any:
        if self.is_single:
            if len(value) > 1:
                name = max(self.opts, key=len)
                raise click.UsageError(f"{name} is given twice; give it once", context)
            value = value[0] if value else None
            if self.metavar in _PATHS:
                check_path(context, option, value)
            if self.parse is not None and value is not None:
                value = self.parse(value)
        if self.group:
            self.collect(context, value)
        return value


def parse_project(name: str) -> str | tuple[str, ...] | None:
    """Return a project in the form that `Memories.search` takes; None for a blank name."""
    from memories.identity.place import find_project  # most commands name no project

    return find_project(name)


class TagOption(Option):
    """An option that sets a tag: `--tag KEY=VALUE`, or a known key's own option such as
    `--project`.

    The tags from all such options are collected in the parameter `tags`, a dict, or in the entry
    `tags` of the options' group.
    """

    def __init__(self, *declarations: Any, group: str = "", **settings: Any) -> None:
        """Define the option; see `Option`."""
        super().__init__(*declarations, group=group or "tags", **settings)
        self.is_nested = bool(group)

    def collect(self, context: click.Context, value: Any) -> None:
        """Add the tags; reject two values for one key."""
        tags = context.params.setdefault(self.group, {})
        if self.is_nested:
            tags = tags.setdefault("tags", {})
        add_given_tags(tags, self._pairs(value))

    def _pairs(self, value: Any) -> list[str]:
        if self.name == "tag":
            return list(value)
        if self.name == "project" and value:
            from memories.identity.place import names_of  # most commands name no project

            value = next(iter(names_of(value)), None)
        if self.is_flag:
            value = "true" if value else None
        # A blank value is ignored, so that a script may pass an unset variable.
        return [f"{self.name}={value}"] if value and value.strip() else []


def add_given_tags(tags: dict[str, str], texts: Iterable[str]) -> dict[str, str]:
    """Add tags as `add_tags` does; the project `.` is the working folder's project."""
    add_tags(tags, texts)
    if tags.get("project") == ".":
        from memories.identity.place import names_of  # most commands name no project

        tags["project"] = names_of(".")[0]
    return tags


class _HelpPage:
    """Formats a command's help: options by section, the meaning of TIME, and examples."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = self.get_params(ctx)  # type: ignore[attr-defined]
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in options:
            if isinstance(option, click.Option) and (row := option.get_help_record(ctx)):
                # Click's own --help has no section; it comes last.
                section = getattr(option, "section", "Output" if sections else "Options")
                sections.setdefault(section, []).append(row)
        for name, rows in sections.items():
            with formatter.section(name):
                formatter.write_dl(rows)
        if any(option.metavar == "TIME" for option in options):
            formatter.write_paragraph()
            formatter.write_text(TIME)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in self.epilog.splitlines()))  # type: ignore[attr-defined]


class Command(_HelpPage, click.Command):
    """A command; its epilog contains its examples, one per line."""


class Group(_HelpPage, click.Group):
    """A group of commands, listed in the order of their definition."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the command names."""
        return list(self.commands)


command = functools.partial(click.command, cls=Command)
option = functools.partial(click.option, cls=Option)
