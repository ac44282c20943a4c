"""The command that puts together what a model is given before it answers: context."""

import contextlib
from typing import TYPE_CHECKING, Any

import click

from memories.errors import InvalidInput
from memories.skins.cli.options import in_session
from memories.skins.cli.session import Session, note, read_argument

if TYPE_CHECKING:
    from memories.agent.context import ContextBuilder

MAX_BUDGET = 100_000_000


@click.command(epilog='Example: memory context "When do we ship?" --conversation standup --budget 2000')
@click.argument("query")
@click.option("--conversation", metavar="NAME", required=True, help="The conversation that the message belongs to.")
@click.option("--budget", metavar="N", help="So many tokens at most, by estimate; else CONTEXT_TOKEN_BUDGET.")
@in_session(reads=True)
def context(run: Session, query: str, conversation: str, budget: str | None) -> None:
    """Put together what a model needs to answer a message: the last turns, relevant memories, and the message.

    What is recalled is fenced as data. The text format is the prompt; JSON has it as prompt, with all parts.
    """
    message = read_argument(query, "query")
    builder = _builder(run, _tokens(budget))
    with contextlib.closing(builder.gateway):
        built = builder.build_context(conversation, message)
    prompt = builder.format_for_prompt(built)
    for failed in built["metadata"]["errors"]:
        note(f"{failed['part']} left out: {failed['error']}")
    run.show(_shape(built, prompt), lambda: _shown(prompt))


def _builder(run: Session, budget: int | None) -> "ContextBuilder":
    """Return a builder over this run's memory, or over what MCP_ENDPOINT names, if it names something else.

    Raises:
        InvalidInput: Nothing here can speak to that endpoint.
    """
    from memories import logs
    from memories.agent.backend import EngineBackend, UnsupportedEndpoint
    from memories.agent.context import ContextBuilder
    from memories.agent.gateway import ENGINE, MemoryGateway

    if run.config.sources["log_level"] != "default":
        logs.enable(run.config.log_level)
    endpoint = run.config.mcp_endpoint
    ours = endpoint == ENGINE or run.config.sources["store"] == "flag"
    try:
        gateway = MemoryGateway(endpoint, backend=EngineBackend(run.memories) if ours else None)
    except UnsupportedEndpoint as exc:
        raise InvalidInput(f"MCP_ENDPOINT: {exc}") from exc
    return ContextBuilder.from_config(gateway, run.config, budget)


def _tokens(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_BUDGET):
        raise InvalidInput(f"budget must be a whole number of tokens from 1 to {MAX_BUDGET}")
    return int(text)


def _shape(built: dict[str, Any], prompt: str) -> dict[str, Any]:
    memories = [
        {**_present(vars(item)), "type": item.memory_type, "similarity": score} for item, score in built["memories"]
    ]
    for memory in memories:
        del memory["memory_type"]
    return {
        "conversation_id": built["metadata"]["conversation_id"],
        "history": [_present(vars(turn)) for turn in built["history"]],
        "memories": memories,
        "latest_message": built["latest_message"],
        "metadata": built["metadata"],
        "prompt": prompt,
    }


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _shown(prompt: str) -> str:
    from memories.skins.cli.text import safe

    return safe(prompt)


COMMANDS = (context,)
