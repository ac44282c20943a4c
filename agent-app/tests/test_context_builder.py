"""The builder puts turns, memories and the message into a prompt, within a budget."""


def test_a_context_has_turns_memories_and_the_message() -> None:
    from context_builder import ContextBuilder
    from memory_gateway import MemoryGateway

    with MemoryGateway("memories") as gateway:
        gateway.append_history("standup", "user", "We ship on Fridays", 0, "2026-05-31T10:00:00Z")
        gateway.write_memory("Ann owns deploys", "fact", 0.9, "2026-05-31T10:00:00Z")
        builder = ContextBuilder(gateway)
        context = builder.build_context("standup", "Who owns deploys?")
        prompt = builder.format_for_prompt(context)
        places = [
            prompt.index(text)
            for text in ("Ann owns deploys", "We ship on Fridays", "Who owns deploys?")
        ]
        assert places[2] == max(places)
        assert context["metadata"]["token_counts"]["total"] > 0
        small = ContextBuilder(gateway, token_budget=40)
        shown = small.format_for_prompt(small.build_context("standup", "Who owns deploys?"))
        assert "Who owns deploys?" in shown
        assert len(shown) < len(prompt)
