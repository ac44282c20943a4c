"""The table of commands, the pages of `--help`, and shell completion."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from forked import Forked
from memories import __version__
from memories.answers.fields import DRAFT
from memories.cli import ALIASES, COMMANDS, everyday_page, help_page
from memories.cli.app import TIME, app
from memories.guard.validate import MAX_LIMIT
from memories.search.filters import FILTERS
from memories.settings import SETTINGS

Command = Callable[..., Any]
Completed = Callable[[str], list[str]]
ROOT = Path(__file__).parents[2]
FOLDER = Path(sys.modules["memories.cli"].__file__ or "").parent
DEFAULTS = {setting.name: setting.default for setting in SETTINGS}


def command(name: str) -> click.Command:
    """Return a command by its name."""
    found = app.get_command(click.Context(app), name)
    assert found is not None
    return found


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Yield each command with its full name, including those in groups."""
    for name in COMMANDS:
        found = command(name)
        yield name, found
        if isinstance(found, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in found.commands.items())


EVERY = dict(every_command())


def options() -> Iterator[tuple[str, click.Option]]:
    """Yield every option with the name of its command."""
    for name, found in EVERY.items():
        yield from ((name, option) for option in found.params if isinstance(option, click.Option))


# --- the table


def test_the_table_matches_the_commands() -> None:
    said = {}
    for name in COMMANDS:
        found = command(name)
        assert found.callback is not None
        module = found.callback.__module__.removeprefix("memories.cli.")
        said[found.name] = (module, (found.help or "").splitlines()[0])
    assert said == {name: (module, line) for name, (module, _, line) in COMMANDS.items()}


def test_the_table_has_every_command() -> None:
    defined = set()
    for module in {module for module, _, _ in COMMANDS.values()}:
        __import__(f"memories.cli.{module}")
        defined |= {found.name for found in sys.modules[f"memories.cli.{module}"].COMMANDS}
    assert defined == set(COMMANDS)
    written = {file.stem for file in FOLDER.glob("*.py") if "\nCOMMANDS = (" in file.read_text()}
    assert written == {module for module, _, _ in COMMANDS.values()}


def test_all_specified_commands_exist() -> None:
    specified = "create search get history reinforce update delete tags status"
    ours = "restore forget list config turns"
    assert set(COMMANDS) >= {*specified.split(), *ours.split()}


def test_the_commands_of_a_group_are_together() -> None:
    """Each heading occurs once, followed by all its commands."""
    groups = [group for _, group, _ in COMMANDS.values()]
    assert groups == sorted(groups, key=groups.index)
    headings = [line for line in help_page().splitlines() if line.rstrip(":") in groups]
    assert headings == [f"{group}:" for group in dict.fromkeys(groups)]


# --- pages


def test_without_a_command_six_everyday_commands_are_printed(memory: Command) -> None:
    page = memory().out
    assert page == memory("help").out == f"{everyday_page()}\n"
    assert memory().code == 0
    listed = re.findall(r"^  memory (\w+)", page.partition("More:")[0], re.M)
    assert listed == ["connect", "create", "search", "list", "update", "delete"]
    assert set(listed) <= set(COMMANDS)
    assert f"all {len(COMMANDS)} commands" in page
    assert all(len(line) <= 80 for line in page.splitlines())


def test_the_page_with_all_commands_can_be_requested_in_three_ways(memory: Command) -> None:
    pages = {memory(*line.split()).out for line in ("--help", "-h", "help --all")}
    assert pages == {f"{help_page()}\n"}


@pytest.mark.parametrize("alias", ALIASES)
def test_help_shows_a_command_by_any_of_its_names(memory: Command, alias: str) -> None:
    page = memory(ALIASES[alias], "--help").out
    assert memory("help", ALIASES[alias]).out == page
    assert memory("help", alias).out == memory(alias, "--help").out == page


def test_help_shows_a_command_of_a_group(memory: Command) -> None:
    assert memory("help", "turns", "add").out == memory("turns", "add", "--help").out
    assert memory("help", "nonsense").error == "No such command 'nonsense'; see memory --help"


@pytest.mark.parametrize("group", ["turns", "scratchpad", "capture"])
def test_a_group_without_a_command_prints_its_page(memory: Command, group: str) -> None:
    answer = memory(group)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == memory(group, "--help").out


# --- other words for commands


def test_aliases_are_not_listed_or_completed(memory: Command, completed: Completed) -> None:
    assert not set(ALIASES) & set(COMMANDS)
    assert set(ALIASES.values()) <= set(COMMANDS)
    assert not re.search(rf"^  ({'|'.join(ALIASES)}) ", memory("--help").out, re.M)
    assert completed("memory rem") == []
    assert completed("memory remember x --dec") == ["--decay"]


def test_every_alias_runs_its_command(memory: Command) -> None:
    for verb in ("add", "remember", "save", "store"):
        memory_id = memory(verb, f"The {verb} port is 5433", "--force").json["id"]
    assert memory("ls").json["count"] == 4
    for verb in ("find", "recall"):
        assert memory(verb, "the store port").json["results"][0]["id"] == memory_id
    assert memory("show", memory_id).json["content"] == "The store port is 5433"
    assert memory("rm", memory_id).json == {"id": memory_id, "deleted": True}
    assert memory("ls").json["count"] == 3
    assert memory("undelete", memory_id).json["content"] == "The store port is 5433"


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("create The port is 5433", 'memory create "The port is 5433"'),
        ("add The port is 5433", 'memory create "The port is 5433"'),
        (
            "create is --project shop the --tag a=is port --force",
            'memory create "is the port" --project shop --tag a=is --force',
        ),
        ("create it costs $5", "memory create 'it costs $5'"),
        ("search when do we deploy -n bob", 'memory search "when do we deploy" -n bob'),
        ("update 01a1fdf1 it is late", 'memory update 01a1fdf1 "it is late"'),
        ("turns add standup we ship", 'memory turns add standup "we ship"'),
        ("context what is next --budget 900", 'memory context "what is next" --budget 900'),
    ],
)
@pytest.mark.cold
def test_unquoted_words_get_a_hint_with_the_quoted_command(
    memory: Command, home: Path, arguments: str, command: str
) -> None:
    answer = memory(*arguments.split())
    assert answer.code == 2
    assert answer.error == f"put the text in quotes: {command}"
    assert not home.exists()


def test_the_hint_keeps_quoted_options(memory: Command) -> None:
    error = memory("create", "a", "b", "--project", "my shop").error
    assert error.endswith('memory create "a b" --project "my shop"')
    error = memory("search", "It's", "now", "--project", "$x").error
    assert error.endswith("""memory search "It's now" --project '$x'""")


def test_superfluous_arguments_that_are_not_text_are_refused(memory: Command) -> None:
    assert memory("list", "x").error == (
        "Got unexpected extra argument (x); see memory list --help"
    )


def test_the_page_lists_every_command_and_the_common_rules() -> None:
    page = help_page()
    for name, (_, _, line) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", page, re.M)
    for part in (
        "MEMORY",
        "memory config",
        ".env",
        "config.toml",
        '"stored": false',
        "not stored: a duplicate",
    ):
        assert part in page or part == "MEMORY"


def test_the_page_with_all_commands_loads_neither_a_command_nor_a_library(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom memories.__main__ import run\ncode = run(sys.argv[1:])\n"
        "print(sorted(name for name in sys.modules if name == 'click' or 'memories.' in name), file=sys.stderr)"
    )
    for arguments in ([], ["--help"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        loaded = set(ast.literal_eval(done.stderr))
        assert loaded <= {
            f"memories.{name}" for name in ("__main__", "errors", "languages", "cli", "answers")
        } | {"memories.cli.output", "memories.answers.advice"}


def test_a_command_loads_no_other_command(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom memories.__main__ import run\nrun(['tags', '--help'])\n"
        "print([name for name in sys.argv[1:] if f'memories.cli.{name}' in sys.modules], file=sys.stderr)"
    )
    modules = sorted({module for module, _, _ in COMMANDS.values()} | {"text"})
    done = subprocess.run(
        [sys.executable, "-c", script, *modules],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == "['search']\n"


def test_every_command_has_help_with_an_example(memory: Command) -> None:
    failures = []
    for name, found in EVERY.items():
        answer = memory(*name.split(), "--help")
        starts = answer.out.startswith(f"Usage: memory {name}")
        has_example = f"Examples:\n  memory {name}" in answer.out
        if (answer.code, answer.err, starts, has_example, bool(found.help)) != (
            0,
            "",
            True,
            True,
            True,
        ):
            failures.append((name, answer))
    assert failures == []


def test_no_line_is_cut_or_too_wide(memory: Command) -> None:
    failures = []
    for name in ("", *EVERY):
        first, *lines = memory(*name.split(), "--help").out.splitlines()
        failures += [(name, line) for line in (first, *lines) if "…" in line or len(line) > 80]
        failures += [
            (name, line) for line in lines if "..." in line
        ]  # the first line has click's [ARGS]...
    assert failures == []


def test_every_option_has_a_description() -> None:
    for name, option in options():
        assert option.help, (name, option.name)
        assert option.help[0].isupper() or option.name in ("role", "sort", "output", "decay"), (
            name,
            option.name,
        )
        assert option.help.endswith((".", "]")), (name, option.name)


def test_every_option_with_a_default_shows_it() -> None:
    """Omitted filters, tags and the like have no effect; for all other options the page names the
    default.
    """
    shown = {(name, option.name): found[1] for name, option in options()
            if (found := re.search(r"\[default: (.+)\]$", option.help or ""))}  # fmt: skip
    without = {name for name, row in FILTERS.items() if not row.default}
    without |= DRAFT.keys() - {"decay", "confidence"}
    without |= {
        "tag", "agent", "personality", "type", "cursor", "remove_tags", "message_id", "target",
        "salvage", "action", "against", "partitions", "import_id", "match", "not_corrects", "host", "to",
        "allow", "jsonl", "lines", "version", "title", "user", "env_file", "anchors", "valid_until", "recheck",
        "names", "tls_cert", "tls_key", "issuer", "public_url",
    }  # fmt: skip
    for name, option in options():
        if not option.is_flag:
            has_none = option.name in without and (name, option.name) != ("context", "conversation")
            has_none = has_none and (name, option.name) != ("serve", "host")
            has_none = has_none and (name, option.name) != ("turns add", "role")
            assert ((name, option.name) in shown) is not has_none, (name, option.name)
    assert {value for (_, option), value in shown.items() if option == "namespace"} == {
        DEFAULTS["namespace"]
    }
    assert {value for (_, option), value in shown.items() if option == "limit"} == {
        str(DEFAULTS["default_limit"])
    }
    assert shown["search", "min_confidence"] == str(DEFAULTS["min_confidence"])
    assert DEFAULTS["context_token_budget"] is None
    assert shown["context", "budget"] == "no limit"


def test_options_are_grouped_in_sections(memory: Command) -> None:
    page = memory("search", "--help").out
    headings = re.findall(r"^(\w+):$", page, re.M)
    assert headings == ["Filters", "Time", "Ranking", "Output", "Store", "Examples"]
    assert f"1 to {MAX_LIMIT}. [default: 10]" in page


def test_a_page_with_a_time_option_says_how_to_write_a_time(memory: Command) -> None:
    for name, found in EVERY.items():
        timed = any(option.metavar == "TIME" for option in found.params)
        assert (
            " ".join(TIME.split()) in " ".join(memory(*name.split(), "--help").out.split())
        ) is timed, name


def test_turns_are_listed_in_the_order_in_which_they_are_used(memory: Command) -> None:
    listed = re.findall(
        r"^  (\w+)  ", memory("turns", "--help").out.partition("Commands:")[2], re.M
    )
    assert listed[:6] == ["add", "tail", "show", "list", "update", "forget"]


def test_the_version_is_printed(memory: Command) -> None:
    assert memory("--version").out == f"{__version__}\n"


# --- invalid command lines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("search", "--dry-run"),
            "No such option '--dry-run'; if it is text, put -- before it; see memory search",
        ),
        (
            ("search", "-5"),
            "No such option '-5'; if it is text, put -- before it; see memory search --help",
        ),
        (("create", "--a flag of the compiler"), "if it is text, put -- before it"),
        (("list", "--json"), "No such option '--json'; use --format json; see memory list --help"),
        (("list", "--limt", "3"), "Did you mean '--limit'? See memory list --help"),
        (("seach", "x"), "No such command 'seach'. Did you mean 'search'? See memory --help"),
        (
            ("conect",),
            "No such command 'conect'. Did you mean 'connect', 'context', 'disconnect'? See",
        ),
        (("get",), "Missing argument 'ID' or option '--key'; see memory get --help"),
        (("migrate",), "Missing option '--to'; see memory migrate --help"),
        (("--flag",), "No such option '--flag'"),
        (("-n", "bob", "list"), "'-n'; options follow the command, as in memory list --limit 3"),
        (("turns", "--role", "user", "tail", "x"), "'--role'; options follow the command"),
        (
            ("search", "--query", "x"),
            "'--query'; give the text without an option; see memory search",
        ),
        (("create", "--content", "x"), "'--content'; give the text without an option"),
    ],
)
def test_a_wrong_command_line_gets_a_one_sentence_error(
    memory: Command, arguments: tuple[str, ...], said: str
) -> None:
    answer = memory(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.error


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("create", "c", "--project", "a", "--project", "b"), "--project"),
        (("create", "c", "--decay", "stable", "--decay", "stable"), "--decay"),
        (("list", "--agent", "a", "--agent", "b"), "--agent"),
        (("search", "q", "--limit", "3", "--limit", "4"), "--limit"),
        (("list", "-n", "a", "--namespace", "b"), "--namespace"),
        (("turns", "add", "c", "t", "--at", "1d", "--at", "2d"), "--at"),
        (("migrate", "--to", "sqlite:///a.db", "--to", "sqlite:///b.db"), "--to"),
    ],
)
@pytest.mark.cold
def test_repeating_a_single_value_option_is_refused(
    memory: Command, home: Path, arguments: tuple[str, ...], option: str
) -> None:
    answer = memory(*arguments)
    assert answer.code == 2
    assert answer.error.startswith(f"{option} is given twice; give it once")
    assert not home.exists()


# --- completion


@pytest.fixture
def completed(forked: Forked) -> Completed:
    """Return the completions that bash receives for the last word of a line."""

    def complete(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = forked.run([], env={**os.environ, "_MEMORY_COMPLETE": "bash_complete", **words})
        assert (done.returncode, done.stderr) == (0, b"")
        return [row.partition(",")[2] for row in done.stdout.decode().splitlines() if row]

    return complete


CHOICES = [
    ("memory re", ["reinforce", "restore", "review", "reembed"]),
    ("memory turns ", ["add", "tail", "show", "list", "update", "forget"]),
    ("memory create x --dec", ["--decay"]),
    ("memory create x --decay ", ["stable", "contextual", "reinforceable"]),
    ("memory create x --type p", ["preference", "project"]),
    ("memory search x --in h", ["history"]),
    ("memory status --format ", ["json", "text", "compact"]),
    ("memory turns add c t --role a", ["assistant"]),
    ("memory log --action r", ["restore", "reinforce", "rollback"]),
    ("memory connect claude-code c", ["claude-code", "codex", "cursor", "claude-desktop"]),
]
KNOWN = [
    ("memory get --key us", ["user/editor"]),
    ("memory list --project ", ["shop", "web"]),
    ("memory list --project w", ["web"]),
    ("memory list --agent c", ["claude"]),
    ("memory list --tag mo", ["mood="]),
    ("memory list --tag mood = ", ["good", "great"]),
    ("memory list --tag mood = gr", ["great"]),
    ("memory tags rename mo", ["mood"]),
    ("memory list -n ", ["bob", "shared"]),
    ("memory list --no-shared -n bob --tag ", []),
    ("memory get --no-shared -n bob ffff", []),
    ("memory turns show co", ["codex:s1"]),
    ("memory turns show codex :", ["s1"]),
    ("memory search x --conversation codex : s", ["s1"]),
    ("memory search x --conversation = codex : s", ["s1"]),
    ("memory list --tag = mood = gr", ["great"]),
    ("memory list --project = w", ["web"]),
]


def test_commands_options_and_choices_are_completed(completed: Completed) -> None:
    found = [(line, completed(line)) for line, _ in CHOICES]
    assert found == CHOICES


def test_names_from_the_store_are_completed(memory: Command, completed: Completed) -> None:
    memory(
        "create",
        "The editor is Vim",
        "--key",
        "user/editor",
        "-t",
        "mood=good",
        "--project",
        "shop",
    )
    memory(
        "create", "The port is 5433", "-t", "mood=great", "--project", "web", "--agent", "claude"
    )
    memory("create", "The queue is Redis", "-n", "bob")
    memory("turns", "add", "codex:s1", "hello")
    found = [(line, sorted(completed(line))) for line, _ in KNOWN]
    assert found == KNOWN


def test_ids_are_completed_newest_first(memory: Command, completed: Completed) -> None:
    ids = [memory("create", f"The {n}. fact", "--force").json["id"] for n in range(3)]
    assert completed("memory get ") == ids[::-1]
    assert completed(f"memory delete {ids[0]} {ids[1][:14]}") == [
        name for name in ids[::-1] if name[:14] == ids[1][:14]
    ]
    memory("delete", ids[0])
    assert completed("memory restore 0") == [ids[0]]
    assert completed(f"memory history {ids[0]}") == [ids[0]]


@pytest.mark.parametrize(
    "environment",
    [
        {"MEMORY_STORE": "nonsense://x"},
        {"MEMORY_STORE": "postgresql://nobody:x@127.0.0.1:1/x"},
        {"MEMORY_FORMAT": "bogus"},
        {"MEMORY_HOME": "/proc/none"},
        {"MEMORY_NAMESPACE": "No Name"},
    ],
)
def test_completion_prints_no_errors(
    completed: Completed, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert completed("memory get 01a1fdf1") == []
    assert completed("memory list --project s") == []


def test_completion_creates_no_store_and_counts_no_reads(
    memory: Command, completed: Completed, home: Path
) -> None:
    assert completed("memory list --project s") == []
    assert not home.exists()
    name = memory("create", "The editor is Vim").json["id"]
    completed("memory get ")
    assert memory("list").json["results"][0].get("access_count") is None, name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_for_a_shell_is_printed(forked: Forked, shell: str) -> None:
    done = forked.run([], env={**os.environ, "_MEMORY_COMPLETE": f"{shell}_source"})
    assert (done.returncode, b"_memory_completion" in done.stdout) == (0, True)


# --- the modules


def test_no_imports_are_circular() -> None:
    """Imports inside functions and for type checking are included."""
    imported = {
        file.stem: set(re.findall(r"from memories\.cli\.(\w+) import", file.read_text()))
        | set(re.findall(r"from memories\.cli import (text|output)", file.read_text()))
        for file in FOLDER.glob("*.py")
    }
    while free := [name for name, others in imported.items() if not others & imported.keys()]:
        for name in free:
            del imported[name]
    assert imported == {}


# --- documentation


def test_the_commands_page_lists_every_command() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    listed = re.findall(r"^\| `memory ([a-z]+(?: [a-z]+)?)", page, re.M)
    assert listed == [
        name
        for name in EVERY
        if name not in ("turns", "tokens", "scratchpad", "capture", "review list")
    ]
    for code in (
        "| 0 | done",
        "| 1 | error",
        "| 2 | wrong usage",
        "| 3 | not stored: very similar to the memories",
    ):
        assert code in page


def test_every_option_is_in_the_documentation() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    missing = {
        max(option.opts, key=len)
        for _, option in options()
        if max(option.opts, key=len) not in pages
    }
    assert missing == set()
