"""A minimal agent with a memory: reads JSON lines, stores them, and prints an answer to each.

A line {"conversation_id", "role", "text"} is a message. The answer to a user's message contains
the context for a model, including the complete prompt. A line {"conversation_id", "remember",
"type", "confidence"} proposes a memory. In each answer, `stored` says whether the message or memory
was stored. `--health` prints the memory's state, and exits with 0 if the memory is healthy.
"""

import json
import sys
from typing import Any

from context_builder import ContextBuilder
from memory_gateway import MemoryGateway
from memory_policy import MemoryPolicy

from memories import AgentMemory, MemoriesError, load_config


def main() -> int:
    """Answer every line of standard input; return the exit code."""
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
    """Check the memory once, without the retries of `AgentMemory.start`; return the exit code."""
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


def _remember(  # the parameters are named after the line's members
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
