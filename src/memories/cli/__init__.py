"""The `memory` command: parses arguments, calls a method of `Memories`, and prints the result.

This module contains only the table of commands and the page that lists them, so the page can be
shown without importing click or a command.
"""

# The headings of the help page, and the commands under each: the module and the one-line help.
_GROUPS = {
    "Remember": {
        "create": ("memories", "Store a memory, unless it is already stored."),
    },
    "Recall": {
        "search": ("search", "Find memories or conversation turns, best match first."),
        "get": ("search", "Show one memory, or several."),
        "list": ("search", "List memories, newest first."),
        "history": ("search", "Show every version of a memory, oldest first."),
        "tags": ("search", "List tags and the number of memories with each."),
        "duplicates": ("search", "Find memories that repeat older ones."),
    },
    "Change": {
        "update": ("memories", "Add a new version of a memory, with new text or tags."),
        "edit": ("memories", "Edit a memory in your editor; saving adds a version."),
        "reinforce": ("memories", "Restart the decay of a reinforceable memory."),
        "delete": ("memories", "Delete a memory; restore undoes this."),
        "restore": ("memories", "Restore a deleted memory, or an entire store from a backup."),
        "review": ("review", "Review pending memories: list, accept, edit or reject them."),
        "verify": ("search", "Check memories against the files and code that they cite."),
        "confirm": ("memories", "Confirm that a memory is still true; adds a version."),
        "tidy": ("review", "Propose memories to delete, link or keep, for review."),
        "move": ("identities", "Move memories to another namespace."),
        "rollback": ("bulk", "Restore memories to their state at an earlier time."),
        "forget": ("memories", "Permanently erase a memory with all its versions."),
    },
    "Conversations": {
        "turns": ("turns", "Add, read and erase conversation turns."),
    },
    "Agents": {
        "context": ("turns", "Build the prompt for a model's answer to a message."),
        "prompt": ("agents", "Print the block that starts a session's prompt."),
        "scratchpad": ("agents", "Show and change the memories that a session starts with."),
        "hook": ("agents", "Handle an event from an agent's host."),
        "capture": ("agents", "Store what hooks captured, or show what is queued."),
        "off": ("agents", "Switch hooks off: nothing is recalled or captured automatically."),
        "on": ("agents", "Switch hooks back on after memory off."),
        "chat": ("serve", "Talk to an agent that remembers you."),
        "serve": ("serve", "Run a local server: faster commands, an HTTP API and a web page."),
        "connect": ("connect", "Connect agents to Memories through an MCP server and hooks."),
        "disconnect": ("connect", "Disconnect agents from Memories."),
        "mcp": ("serve", "Serve an agent over MCP, on standard input and output."),
    },
    "Store and settings": {
        "status": ("status", "Check that the store works, and show what it contains."),
        "namespaces": ("identities", "List the namespaces and the size of each."),
        "projects": ("identities", "List the projects, their other names and their folders."),
        "stats": ("status", "Show operations, their speed, and the most-read memories."),
        "config": ("status", "Show every setting and where it came from."),
        "trust": ("status", "Trust the settings in a folder's .env file."),
        "tokens": ("identities", "Create, list and revoke server tokens."),
        "backup": ("backup", "Copy the entire store to a file, and verify the copy."),
        "doctor": ("backup", "Find problems in a store, and suggest remedies."),
        "log": ("status", "Show who changed what and when, and verify the log."),
        "export": ("stores", "Write memories and turns as JSON lines, or as Markdown."),
        "import": ("transfer", "Import an export, or memories from another program."),
        "migrate": ("stores", "Copy the entire store to another one, and verify the copy."),
        "reembed": ("stores", "Recompute all vectors with another embedder."),
    },
}
# Maps each command to the module that defines it, its heading on the page, and its one-line help.
COMMANDS = {
    name: (module, heading, line)
    for heading, commands in _GROUPS.items()
    for name, (module, line) in commands.items()
}

# Aliases that people and models type; help and completion don't list them.
ALIASES = {
    "add": "create",
    "remember": "create",
    "save": "create",
    "store": "create",
    "find": "search",
    "recall": "search",
    "ls": "list",
    "show": "get",
    "rm": "delete",
    "undelete": "restore",
}

_HEAD = """\
Usage: memory COMMAND [OPTIONS]

  Persistent, shared, searchable memory for AI agents."""

_EVERYDAY = f"""\
{_HEAD}

Everyday commands:
  memory connect                              List your agents; connect one.
  memory create "Deploys happen on Tuesdays"  Store a memory.
  memory search "when do we deploy?"          Find memories by meaning and word.
  memory list                                 List memories, newest first.
  memory update ID "They happen on Mondays"   Give a memory a new version.
  memory delete ID                            Delete it; restore brings it back.

More:
  memory help COMMAND   Show what a command does, its options, and examples.
  memory help --all     List all {len(COMMANDS)} commands, and the common rules.
  memory serve          Show your memories on a web page; speed up commands."""

_TAIL = """\
Options:
  -h, --help  Show this page; after a command, show its options.
  --version   Show the version.

Output:
  Output is JSON on a pipe and text on a terminal; --format overrides this.
  Errors are one sentence on standard error.
  Agents: with --format compact, results take a sixth of the tokens.
  People: to use a pager, run memory list --format text | less, or set
  MEMORY_FORMAT=text for all pipes.

Defaults:
  An option overrides the environment, which overrides .env in the working
  folder, then config.toml, then the default. memory config shows all settings.

Exit codes:
  0 done; 1 error; 2 usage; 3 not stored: a duplicate; 4 done, but damaged
  records were left out, or the store was unreachable and the scratchpad
  answered. Storing the same text again exits 0 with "stored": false.

Examples:
  memory create "The user prefers Python" --type preference
  memory search "which language?" """


def expand(arguments: list[str]) -> list[str]:
    """Return a command line with an alias replaced by the command's own name.

    `help COMMAND` becomes `COMMAND --help`, and `help --all` becomes `--help`. `help` alone stays
    the same, and no arguments become `help`.
    """
    first, *rest = arguments or ["help"]
    if first != "help":
        return [ALIASES.get(first, first), *rest]
    if rest in (["--all"], ["-a"], ["all"]):
        return ["--help"]
    return [*expand(rest), "--help"] if rest else ["help"]


def everyday_page() -> str:
    """Return the page that `memory` prints without arguments: the commands to start with."""
    return _EVERYDAY


def help_page() -> str:
    """Return the page that `memory --help` prints: the commands by purpose, and common rules."""
    blocks = [_HEAD]
    for heading, commands in _GROUPS.items():
        lines = [f"  {name:<10}  {line}" for name, (_, line) in commands.items()]
        blocks.append("\n".join([f"{heading}:", *lines]))
    return "\n\n".join([*blocks, _TAIL]).rstrip()
