"""The policy decides what is worth storing, and how often."""


def test_the_policy_checks_confidence_type_and_rate() -> None:
    from memory_policy import MemoryPolicy

    policy = MemoryPolicy(0.7, 2)
    assert [policy.should_store("fact", confidence) for confidence in (0.69, 0.7, 1.0, 1.1)] == [
        False,
        True,
        True,
        False,
    ]
    assert [
        policy.validate_memory_type(word)
        for word in ("preference", "fact", "project", "decision", "rumour")
    ] == [
        *[True] * 4,
        False,
    ]
    assert [policy.enforce_rate_limit(window) for window in ("a", "a", "a", "b")] == [
        True,
        True,
        False,
        True,
    ]
