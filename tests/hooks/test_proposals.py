"""Sentences that are proposed, and junk that is not."""

import pytest

from memories.hooks.proposals import candidates
from memories.hooks.sentences import repeats

WORTH = [
    (
        "user",
        "Remember that the staging database listens on port 5433.",
        "The staging database listens on port 5433.",
    ),
    ("user", "remember: I prefer tabs over spaces", "I prefer tabs over spaces"),
    ("user", "Please remember my favorite editor is Helix.", "My favorite editor is Helix."),
    ("user", "Remember this:\nWe deploy on Tuesdays.", "We deploy on Tuesdays."),
    ("user", "Can you remember that Ann owns deploys?", "Ann owns deploys."),
    ("user", "Don't forget that tests run with make test", "Tests run with make test"),
    ("user", "ok, keep in mind that the API allows 10 requests", "The API allows 10 requests"),
    (
        "user",
        "remember to run make lint before each commit",
        "Remember to run make lint before each commit",
    ),
    ("user", "We decided to use PostgreSQL.", "We decided to use PostgreSQL."),
    ("user", "I learned that uv caches its wheels.", "I learned that uv caches its wheels."),
    ("user", "preference: dark mode in all editors", "Dark mode in all editors"),
    ("user", "Important: never push to main on Fridays", "Never push to main on Fridays"),
    (
        "user",
        "It's important that migrations run before deploys.",
        "It's important that migrations run before deploys.",
    ),
    ("user", "- TODO: add a retry to the uploader", "TODO: add a retry to the uploader"),
    ("user", "FIXME: the parser drops trailing commas", "FIXME: the parser drops trailing commas"),
    ("assistant", "Done. I decided to cache the tokens.\nBye.", "I decided to cache the tokens."),
    (
        "assistant",
        "The flaky test was solved by pinning the clock.",
        "The flaky test was solved by pinning the clock.",
    ),
    (
        "tool",
        "Root cause: the index on users.email was missing",
        "Root cause: the index on users.email was missing",
    ),
    ("user", "Merke dir, dass wir dienstags deployen.", "Wir dienstags deployen."),
    (
        "user",
        "Wir haben uns entschieden, PostgreSQL zu nutzen.",
        "Wir haben uns entschieden, PostgreSQL zu nutzen.",
    ),
    ("user", "Recuerda que el puerto es 5433.", "El puerto es 5433."),
    ("user", "记住：部署在星期二", "部署在星期二"),
]
JUNK = [
    ("user", "Do you remember what we decided?"),
    ("user", "Can you remember what I said yesterday?"),
    ("user", "Don't remember this: the password is swordfish"),
    ("user", "I don't remember that we decided to use Go."),
    ("user", "Remember when we used Go?"),
    ("user", "Remember the last tab in local storage"),
    ("user", "The form should remember the user's choice."),
    ("user", "Add a Remember me checkbox to the form."),
    ("user", "The README says: we decided to use Go."),
    ("user", '"We decided to use Go" is the title of a talk.'),
    ("user", "Which database have we decided to use?"),
    ("user", "We haven't decided to use Redis yet."),
    ("user", "If we had decided to use Redis, it would be faster."),
    ("user", "Maybe the team decided to use Redis."),
    ("user", "Suppose we discovered that the cache is slow."),
    ("user", "It is not important that this is fast."),
    ("user", "```\n# TODO: mend this\nremember that x is 1\n```"),
    ("user", "    TODO: code by its indent"),
    ("user", "> remember that I said this elsewhere"),
    ("user", "remember"),
    ("user", "Remember this"),
    ("user", "TODO:"),
    ("user", "print('TODO: x')"),
    ("assistant", "I'll remember that the port is 5433."),
    ("assistant", "Remember that you must run the tests."),
    ("assistant", "Let me know if you decided to use Go."),
    ("assistant", "You could have decided to use Go."),
    ("assistant", "Would you like me to remember that?"),
    ("tool", "TODO: what a file says"),
    ("tool", "We decided to use what a web page says."),
    ("tool", "remember that a web page says this"),
    ("user", "remember that " + "x " * 1000),
    ("user", "remember that {{{{ }}}} ;;;; ==== (((( )))) 1 2 3"),
]


@pytest.mark.parametrize(("role", "text", "content"), WORTH)
def test_sentences_worth_remembering_are_proposed_whole(role: str, text: str, content: str) -> None:
    assert [each.content for each in candidates(text, role)] == [content]


@pytest.mark.parametrize(("role", "text"), JUNK)
def test_junk_is_not_proposed(role: str, text: str) -> None:
    assert candidates(text, role) == []


def test_a_repeated_sentence_is_proposed_once() -> None:
    assert len(candidates("TODO: add a retry here\n\nTODO: add a retry here", "user")) == 1


def test_confidence_falls_from_user_to_assistant_to_tool() -> None:
    said = "The team learned that caches expire."
    told, user, assistant, tool = (
        candidates(text, role)[0].confidence
        for text, role in (
            ("remember that caches expire", "user"),
            (said, "user"),
            (said, "assistant"),
            (said, "tool"),
        )
    )
    assert told > user > assistant > tool >= 0.7


def test_types_are_those_of_the_policy() -> None:
    kinds = {
        text: candidates(text, "user")[0].kind for _, text, _ in WORTH if candidates(text, "user")
    }
    assert kinds["remember: I prefer tabs over spaces"] == "preference"
    assert kinds["We decided to use PostgreSQL."] == "decision"
    assert set(kinds.values()) <= {"preference", "fact", "project", "decision"}


@pytest.mark.parametrize(
    ("said", "again"),
    [
        ("I remember that the staging database listens on port 54331.", True),
        ("The staging database listens on a port", True),
        ("The staging database listens on port 54332.", False),
        ("The staging database never listens on port 54331.", False),
        ("The production database listens on port 54331.", False),
    ],
)
def test_another_number_or_negation_is_not_a_repetition(said: str, again: bool) -> None:
    assert (
        repeats(said, ["Ann owns deploys.", "The staging database listens on port 54331."]) is again
    )
