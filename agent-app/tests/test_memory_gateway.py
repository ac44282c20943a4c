"""The gateway stores turns and memories, and returns them."""

import pytest


def test_turns_and_memories_come_back() -> None:
    from memory_gateway import MCPError, MemoryGateway

    with MemoryGateway("memories") as gateway:
        gateway.ensure_collections(["history", "memory"])
        ids = [
            gateway.append_history(
                "standup", "user", text, index, f"2026-05-31T10:0{index}:00+02:00"
            )
            for index, text in enumerate(("We ship on Fridays", "Ann owns deploys"))
        ]
        assert [turn["id"] for turn in gateway.tail_history("standup", 5)] == ids
        fact = gateway.write_memory(
            "Ann owns deploys", "fact", 0.9, "2026-05-31T10:00:00Z", "standup"
        )
        assert [found["id"] for found in gateway.recall_memory("who owns deploys?", 8, 0.7)] == [
            fact
        ]
        with pytest.raises(ValueError, match="conversation_id"):
            gateway.append_history("", "user", "Hello", 0, "2026-05-31T10:00:00Z")
        with pytest.raises(MCPError):
            gateway.ensure_collections(["other"])
