"""Selection of the messages that fit into a request."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memories.integrations.amplifier import context
from memories.integrations.amplifier.context import Cut, fit, size_of, tokens_of, view

Message = dict[str, Any]


def fit_messages(
    messages: list[Message],
    budget: int,
    cut: Cut = Cut(),  # noqa: B008
) -> tuple[Cut, list[Message]]:
    """Fit messages into a budget; return the cut and the visible messages."""
    found = fit(messages, [size_of(message) for message in messages], cut, budget)
    return found, view(messages, found)


def tokens(messages: list[Message]) -> int:
    """Count the tokens of messages without the notice."""
    return sum(
        tokens_of(message)
        for message in messages
        if message["content"] != context.NOTICE["content"]
    )


def call(*ids: str) -> Message:
    """Return a message that calls tools."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": each, "tool": "bash"} for each in ids],
    }


def result(of: str, size: int = 30) -> Message:
    """Return the result of a tool call."""
    return {"role": "tool", "tool_call_id": of, "content": f"{of} " + "word " * size}


def user(text: str) -> Message:
    """Return a user message."""
    return {"role": "user", "content": text}


def blocks(messages: list[Message]) -> tuple[set[str], set[str]]:
    """Return the ids of tool calls and tool results."""
    calls = {each["id"] for message in messages for each in message.get("tool_calls", ())}
    answers = {str(message["tool_call_id"]) for message in messages if message["role"] == "tool"}
    for message in messages:
        if isinstance(message["content"], list):
            calls |= {block["id"] for block in message["content"] if block["type"] == "tool_use"}
            answers |= {
                block["tool_use_id"]
                for block in message["content"]
                if block["type"] == "tool_result"
            }
    return calls, answers


def test_a_conversation_that_fits_is_sent_unchanged() -> None:
    messages = [user("Hello"), call("a"), result("a")]
    assert fit_messages(messages, 10_000) == (Cut(), messages)


def test_old_tool_results_are_shortened_before_any_message_is_left_out() -> None:
    messages = [user("Hello")]
    for number in range(12):
        messages += [call(f"c{number}"), result(f"c{number}", 300)]
    cut, shown = fit_messages(messages, 4_000)
    assert cut.start == 0
    assert len(shown) == len(messages) + 1
    assert "characters left out" in shown[3]["content"]
    assert shown[-1] == messages[-1]


def test_old_messages_are_left_out_and_the_view_begins_with_the_user() -> None:
    messages = [
        message
        for number in range(50)
        for message in (user(f"Question {number} " + "word " * 50), call("x"), result("x"))
    ]
    _, shown = fit_messages(messages, 2_000)
    assert shown[0] == context.NOTICE
    assert shown[1]["role"] == "user"
    assert shown[-1]["tool_call_id"] == "x"
    assert tokens(shown) <= 2_000


def test_omitted_messages_stay_omitted_to_keep_the_prompt_prefix_stable() -> None:
    messages = [user(f"Question {number} " + "word " * 50) for number in range(60)]
    cut, first = fit_messages(messages, 2_000)
    more = [*messages, user("And now?")]
    again, second = fit_messages(more, 2_000, cut)
    assert again == cut
    assert second[:-1] == first


def test_instructions_and_the_users_last_message_are_kept_in_a_long_turn() -> None:
    messages = [{"role": "system", "content": "You are a bundle."}, user("Do it all.")]
    for number in range(200):
        messages += [call(f"c{number}"), result(f"c{number}", 60)]
    _, shown = fit_messages(messages, 1_500)
    assert [message["role"] for message in shown[:3]] == ["system", "system", "user"]
    assert shown[2]["content"] == "Do it all."
    assert shown[-1]["tool_call_id"] == "c199"
    assert tokens(shown) <= 1_500


def test_calls_and_results_in_content_blocks_stay_together() -> None:
    messages: list[Message] = [user("Go")]
    for number in range(30):
        use = {"type": "tool_use", "id": f"c{number}", "name": "bash", "input": {}}
        tool_result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": "word " * 100}
        messages += [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [tool_result]},
        ]
    _, shown = fit_messages(messages, 1_200)
    calls, answers = blocks(shown)
    assert calls == answers
    assert "c29" in calls
    assert shown[1] == messages[0]


def test_a_message_that_is_too_long_by_itself_is_sent_whole() -> None:
    messages = [user("old"), user("word " * 5_000)]
    _, shown = fit_messages(messages, 100)
    assert shown[-1] == messages[-1]


TURN = st.tuples(
    st.integers(1, 200), st.lists(st.tuples(st.integers(1, 3), st.integers(1, 400)), max_size=4)
)


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(TURN, min_size=1, max_size=15), budget=st.integers(50, 3_000))
def test_calls_and_results_stay_together_and_in_order(turns: list[Any], budget: int) -> None:
    messages: list[Message] = [{"role": "system", "content": "Instructions."}]
    number = 0
    for turn, (words, steps) in enumerate(turns):
        messages.append(user(f"{turn} " + "word " * words))
        for calls, size in steps:
            ids = [f"c{number + each}" for each in range(calls)]
            number += calls
            messages += [call(*ids), *(result(each, size) for each in ids)]
        messages.append({"role": "assistant", "content": f"{turn} is done."})
    before = [dict(message) for message in messages]
    cut, shown = fit_messages(messages, budget)
    calls_shown, answers = blocks(shown)
    assert calls_shown == answers
    assert messages == before
    assert messages[0] in shown
    assert [message for message in messages if message["role"] == "user"][-1] in shown
    assert shown[-1] == messages[-1]
    fixed = [
        message for message in shown if message["role"] != "tool" and message != context.NOTICE
    ]
    assert fixed == [message for message in messages if message in fixed]
    least = fit(messages, [size_of(message) for message in messages], Cut(), 0)
    assert tokens(shown) <= budget or cut == least
    assert view(messages, cut) == shown


@pytest.mark.parametrize("provider", [None, object()])
def test_a_provider_without_limits_gets_the_default_budget(provider: object) -> None:
    from memories.integrations.amplifier.context import MAX_TOKENS, MemoriesContext

    assert MemoriesContext(None)._budget(None, provider) == MAX_TOKENS
    assert MemoriesContext(None, 5_000)._budget(None, provider) == 5_000
    assert MemoriesContext(None, 5_000)._budget(70, provider) == 70


def test_the_budget_is_computed_from_the_providers_limits() -> None:
    from types import SimpleNamespace

    from memories.integrations.amplifier.context import MemoriesContext

    limits = {"context_window": 100_000, "max_output_tokens": 8_000}
    for provider in (
        SimpleNamespace(get_model_info=lambda: SimpleNamespace(**limits)),
        SimpleNamespace(get_info=lambda: SimpleNamespace(defaults=limits)),
        SimpleNamespace(
            get_model_info=lambda: None, get_info=lambda: SimpleNamespace(defaults=limits)
        ),
    ):
        assert MemoriesContext(None)._budget(None, provider) == 100_000 - 4_000 - 4_096
        assert MemoriesContext(None, 50_000)._budget(None, provider) == 50_000
