"""The smallest agent with a memory: JSON lines come in, are stored, and are answered with the
context for a model.

A line {"conversation_id", "role", "text"} is a message. The answer to one of the user is its
context, with the prompt in it; `stored` says in each answer whether the memory has it. A line
{"conversation_id", "remember", "type", "confidence"} is something to be remembered. `--health`
prints how the memory is, and ends with 0 if that is well.
"""

import json
import sys
from typing import Any

from context_builder import ContextBuilder
from memory_gateway import MemoryGateway
from memory_policy import MemoryPolicy

from memories import AgentMemory, MemoriesError, load_config


def main() -> int:
    """Answer lines until there are no more; return the exit code."""
    try:
        if sys.argv[1:] == ["--health"]:
            return _check()
        memory = AgentMemory.start()
    except (MemoriesError, OSError, ValueError) as exc:
        _say({"status": "unreachable", "error": str(exc)})
        return 1
    with memory.gateway:
        for line in sys.stdin.buffer:
            try:
                _say(_answer(memory, **json.loads(line)))
            except (ValueError, TypeError, RecursionError, MemoriesError) as exc:
                _say({"error": f"{type(exc).__name__}: {exc}"})
    return 0


def _check() -> int:
    """Look once, without the patience of a start."""
    with MemoryGateway(load_config().mcp_endpoint) as gateway:
        health = AgentMemory(gateway, ContextBuilder(gateway), MemoryPolicy()).health()
    _say(health)
    return 0 if health["status"] == "healthy" else 1


def _answer(memory: AgentMemory, conversation_id: str, **said: Any) -> dict[str, Any]:
    if "remember" in said:
        return _remember(memory, conversation_id, **said)
    return _converse(memory, conversation_id, **said)


def _converse(memory: AgentMemory, conversation_id: str, role: str, text: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"conversation_id": conversation_id}
    if role == "user":
        context = memory.context(conversation_id, text)
        answer |= context | {"prompt": memory.builder.format_for_prompt(context)}
    return answer | {"stored": memory.append(conversation_id, role, text) is not None}


def _remember(  # a line's names are its arguments
    memory: AgentMemory,
    conversation_id: str,
    remember: str,
    type: str,  # noqa: A002
    confidence: float,
) -> dict[str, Any]:
    offered = memory.offer(
        remember, type, confidence, conversation_id=conversation_id, source="chat"
    )
    answer = {
        "conversation_id": conversation_id,
        "id": offered.id,
        "stored": offered.id is not None,
    }
    return answer if offered.id else answer | {"reason": offered.reason}


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer, default=vars) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
