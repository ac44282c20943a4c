"""The command that assembles what a model is given before it answers: context."""

import contextlib
from typing import TYPE_CHECKING, Any

import click

from memories.answers import shapes
from memories.cli.options import command, in_session, option
from memories.cli.output import DAMAGED, emit, note, safe
from memories.cli.session import read_argument
from memories.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memories.context.context import ContextBuilder
    from memories.memories import Memories

MAX_BUDGET = 100_000_000


@command(epilog='memory context "When do we ship?" --conversation standup --budget 2000')
@click.argument("query")
@option("--conversation", metavar="NAME", help="Conversation that the message belongs to. [default: recall from all]")
@option("--budget", metavar="N", help="Maximum number of tokens of the prompt. [default: no limit]")
@option("--include-suspicious", is_flag=True, help="Include texts that seem to give orders to a model, marked.")
@option("--include-corrected", is_flag=True, help="Also show a memory that another one shown corrects.")
@option("--include-tool-turns", is_flag=True, help="Include turns of the roles tool and system.")
@in_session(reads=True)
def context(
    memories: "Memories",
    query: str,
    conversation: str | None,
    budget: str | None,
    include_suspicious: bool,
    include_tool_turns: bool,
    include_corrected: bool,
) -> int:
    """Assemble what a model needs to answer a message.

    That is the last turns of its conversation, earlier turns that answer it, memories, and the message itself. QUERY
    is the message, or - to read it from standard input. Everything recalled is fenced as data. The text format is the
    prompt; in JSON it is under prompt, beside its parts. What seems to give orders to a model is left out, and turns
    of tools; a note says how many. If the store can't be reached, memories are those of the scratchpad, and it exits 4.
    """
    message = read_argument(query, "query")
    asked = {"include_suspicious": include_suspicious, "include_tool_turns": include_tool_turns}
    most = None if budget is None else _tokens(budget)
    from memories.identity.degraded import WithScratchpad

    builder = _builder(memories, most, include_corrected=include_corrected, **asked)
    gateway = WithScratchpad(builder.gateway, memories)
    builder.gateway = gateway  # type: ignore[assignment] # it passes on all that it does not do itself
    with contextlib.closing(gateway):
        if conversation is None:
            built = builder.build_everywhere(message)
        else:
            built = builder.build_context(conversation, message)
    prompt = builder.format_for_prompt(built)
    for failed in built["metadata"]["errors"]:
        instead = gateway.degraded and failed["part"] == "memories"
        note(f"{failed['part']} {'from the scratchpad alone' if instead else 'left out'}: {failed['error']}")
    if told := left_out(built["metadata"]["left_out"]):
        note(told)
    emit(shapes.context(built, prompt), lambda: "\n".join(map(safe, prompt.split("\n"))))
    if not gateway.degraded:
        return 0
    memories.abandon()  # a call that was given up may still use the store
    return DAMAGED


def left_out(found: "Mapping[str, Mapping[str, Any]]") -> str:
    """Return what a context leaves out, and how to include it, as one sentence; empty if it leaves out nothing."""
    told = [f"{found[reason]['count']} {what}" for reason, what in _LEFT_OUT.items() if reason in found]
    return f"left out: {'; '.join(told)}" if told else ""


_LEFT_OUT = {
    "suspicious": "that seem to give orders to a model (--include-suspicious)",
    "tool_turn": "turns of tools or the system (--include-tool-turns)",
    "captured": "that a hook captured and nobody has accepted (memory search shows them)",
    "one_writer": "more of one other writer (CONTEXT_MAX_PER_WRITER)",
    "no_room": "for which there is no room (CONTEXT_MEMORY_CHARACTERS)",
}


def _builder(memories: "Memories", budget: int | None, *, include_corrected: bool, **asked: bool) -> "ContextBuilder":
    """Return a builder over this run's memory, or over what MCP_ENDPOINT names, if it names something else.

    Raises:
        InvalidInput: Nothing here can speak to that endpoint.
    """
    from memories.context.backend import UnsupportedEndpoint
    from memories.context.context import ContextBuilder
    from memories.context.engine import EngineBackend
    from memories.context.gateway import ENGINE, MemoryGateway
    from memories.core import logs

    if memories.config.sources["log_level"] != "default":
        logs.enable(memories.config.log_level)
    endpoint = memories.config.mcp_endpoint
    ours = endpoint == ENGINE or memories.config.sources["store"] == "flag"
    engine = EngineBackend(memories, include_corrected=include_corrected)
    try:
        gateway = MemoryGateway(endpoint, backend=engine if ours else None)
    except UnsupportedEndpoint as exc:
        raise InvalidInput(f"MCP_ENDPOINT: {exc}") from exc
    return ContextBuilder.from_config(gateway, memories.config, budget, **asked)


def _tokens(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_BUDGET):
        raise InvalidInput(f"budget must be a whole number of tokens from 1 to {MAX_BUDGET}")
    return int(text)


COMMANDS = (context,)
