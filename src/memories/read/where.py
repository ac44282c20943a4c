"""The filter language of `--where`: a text becomes a tree of conditions. Pure; what a name means is
in `selector`.

    either    = every ("or" every)*
    every     = term ("and" term)*
    term      = "not" term | "(" either ")" | condition
    condition = NAME OPERATOR VALUE | NAME "exists" | "has" "(" NAME ")" | STATE | ("since" |
    "until") VALUE

Keywords are read in upper and lower case. A name in quotes is always a tag.
"""

from collections.abc import Sequence
from typing import NamedTuple

from memories.errors import InvalidInput
from memories.guard.validate import shown

MAX_CHARACTERS = 4_096
MAX_CONDITIONS = 200
MAX_DEPTH = 32

OPERATORS = ("!=", "<=", ">=", "!~", "=", "<", ">", "~")
_KEYWORDS = ("and", "or", "not")
_QUOTES = "\"'"
_CURLY = "“”„‟‘’‚‛«»`"
_ENDS_A_WORD = f"()=<>!~,{_QUOTES}{_CURLY}"


class Condition(NamedTuple):
    """One condition.

    Attributes:
        name: What is looked at; in lower case unless it stood in quotes.
        quoted: Whether it stood in quotes.
        operator: One of `OPERATORS`, `exists`, or `is` for a name that stood alone.
        value: What it is compared with; empty for `exists` and `is`.
        literal: Whether the value stood in quotes.
        place: At which character the name begins, from 1.
    """

    name: str
    quoted: bool
    operator: str
    value: str
    literal: bool
    place: int


class Not(NamedTuple):
    """What does not meet the term."""

    term: "Node"


class Every(NamedTuple):
    """What meets all terms."""

    terms: "Sequence[Node]"


class Either(NamedTuple):
    """What meets at least one term."""

    terms: "Sequence[Node]"


Node = Condition | Not | Every | Either


class Names(NamedTuple):
    """Names that are not followed by an operator and a value of one word.

    Attributes:
        states: Those that stand alone, such as `deleted`.
        times: Those whose value may be several words without quotes, such as `last week`.
        bounds: Those that take a value without an operator, such as `since`.
    """

    states: Sequence[str]
    times: Sequence[str]
    bounds: Sequence[str]


def parse(text: str, names: Names) -> Node:
    """Return the tree of an expression.

    Args:
        text: The expression, at most `MAX_CHARACTERS` long.
        names: Names that have a grammar of their own.

    Raises:
        InvalidInput: It can't be read; the message names the place.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"where is of type {type(text).__name__}; give text")
    if len(text) > MAX_CHARACTERS:
        raise InvalidInput(f"where is {len(text)} characters; the limit is {MAX_CHARACTERS}")
    if not text.strip():
        raise InvalidInput(
            "where is empty; write a condition, such as: type = fact and updated > 7d"
        )
    return _Parser(text, names).parse()


def wrong(place: int, what: str) -> InvalidInput:
    """Return the error for an expression that is wrong at a character."""
    return InvalidInput(f"where is wrong at character {place}: {what}")


def conditions(node: Node) -> list[Condition]:
    """Return all conditions of a tree, in the order in which they were written."""
    if isinstance(node, Condition):
        return [node]
    terms = [node.term] if isinstance(node, Not) else node.terms
    return [condition for term in terms for condition in conditions(term)]


class _Token(NamedTuple):
    """A part of the text: `word`, `text` (in quotes), `sign` (an operator or a bracket) or
    `end`.
    """

    kind: str
    text: str
    place: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs

    def __str__(self) -> str:
        return "its end" if self.kind == "end" else f'"{shown(self.text)}"'


class _Parser:
    """Reads the tokens from left to right."""

    def __init__(self, text: str, names: Names) -> None:
        self._tokens = _tokens(text)
        self._names = names
        self._at = self._depth = self._count = 0

    def parse(self) -> Node:
        """Return the tree."""
        found = self._either()
        if self._next.is_sign(")"):
            raise wrong(self._next.place, 'there is no "(" for this ")"')
        if self._next.kind != "end":
            raise wrong(
                self._next.place, f'{self._next} follows a condition; put "and" or "or" before it'
            )
        return found

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += token.kind != "end"
        return token

    def _either(self) -> Node:
        terms = [self._every()]
        while self._next.is_word("or"):
            self._take()
            terms.append(self._every())
        return terms[0] if len(terms) == 1 else Either(terms)

    def _every(self) -> Node:
        terms = [self._term()]
        while self._next.is_word("and"):
            self._take()
            terms.append(self._term())
        return terms[0] if len(terms) == 1 else Every(terms)

    def _term(self) -> Node:
        if not self._next.is_word("not") and not self._next.is_sign("("):
            return self._condition()
        token = self._take()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise wrong(
                token.place,
                f"it is nested more than {MAX_DEPTH} deep; write it with fewer brackets",
            )
        found = Not(self._term()) if token.kind == "word" else self._in_brackets(token)
        self._depth -= 1
        return found

    def _in_brackets(self, opening: _Token) -> Node:
        found = self._either()
        if self._next.kind == "end":
            raise wrong(opening.place, 'this "(" is not closed')
        if not self._take().is_sign(")"):
            token = self._tokens[self._at - 1]
            raise wrong(
                token.place, f'{token} follows a condition; put "and", "or" or ")" before it'
            )
        return found

    def _condition(self) -> Condition:
        name = self._take()
        if name.kind not in ("word", "text") or name.is_word(*_KEYWORDS):
            raise wrong(name.place, f"a condition is missing before {name}; write NAME = VALUE")
        self._count += 1
        if self._count > MAX_CONDITIONS:
            raise wrong(name.place, f"it has more than {MAX_CONDITIONS} conditions; split it")
        if name.is_word("has") and self._next.is_sign("("):
            return self._has()
        quoted = name.kind == "text"
        known = name.text if quoted else name.text.lower()
        made = Condition(
            known if known in self._special() else name.text, quoted, "is", "", False, name.place
        )
        if self._next.is_word("exists"):
            self._take()
            return made._replace(operator="exists")
        if self._next.is_sign(*OPERATORS):
            made = made._replace(operator=self._take().text)
        elif quoted or known not in self._names.bounds:
            if quoted or known not in self._names.states:
                raise wrong(
                    name.place,
                    f"{name} is no condition; write {_plain(name)} = VALUE, or {_plain(name)} exists",
                )
            return made
        else:
            made = made._replace(operator="=")
        value, literal = self._value(made)
        return made._replace(value=value, literal=literal)

    def _special(self) -> set[str]:
        return {*self._names.states, *self._names.times, *self._names.bounds}

    def _has(self) -> Condition:
        self._take()
        name = self._take()
        if name.kind not in ("word", "text"):
            raise wrong(name.place, "has takes the name of a tag: has(project)")
        if not self._take().is_sign(")"):
            raise wrong(name.place, 'has takes one name and a ")": has(project)')
        return Condition(name.text, name.kind == "text", "exists", "", False, name.place)

    def _value(self, condition: Condition) -> tuple[str, bool]:
        """Return what follows an operator, and whether it stood in quotes."""
        token = self._take()
        if token.kind == "text":
            return token.text, True
        if token.kind != "word" or token.is_word(*_KEYWORDS):
            raise wrong(
                token.place, f"a value is missing before {token}; put it in quotes if it is one"
            )
        words = [token.text]
        if not condition.quoted and condition.name in (*self._names.times, *self._names.bounds):
            while self._next.kind == "word" and not self._next.is_word(*_KEYWORDS):
                words.append(self._take().text)
        return " ".join(words), False


def _plain(name: _Token) -> str:
    return shown(name.text) if name.kind == "word" else f'"{shown(name.text)}"'


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        place, sign = at + 1, text[at]
        if sign.isspace():
            at += 1
            continue
        operator = next((each for each in OPERATORS if text.startswith(each, at)), None)
        if sign in _QUOTES:
            value, at = _quoted(text, at)
            found.append(_Token("text", value, place))
        elif sign in "()" or operator is not None:
            found.append(_Token("sign", operator or sign, place))
            at += len(operator or sign)
        elif sign in _ENDS_A_WORD:
            raise wrong(place, _misplaced(sign))
        else:
            begin = at
            while at < len(text) and not text[at].isspace() and text[at] not in _ENDS_A_WORD:
                at += 1
            found.append(_Token("word", text[begin:at], place))
    return [*found, _Token("end", "", len(text) + 1)]


def _misplaced(sign: str) -> str:
    if sign in _CURLY:
        return f"{sign} is no quote here; use \" or '"
    if sign == ",":
        return 'a comma means nothing here; put "and" or "or" between conditions, and a value with a comma in quotes'
    return f'"{sign}" is no operator; use {" ".join(OPERATORS)}'


def _quoted(text: str, at: int) -> tuple[str, int]:
    """Return the text in quotes that begins here, and where it ends; a backslash takes the next
    character as it is.
    """
    quote, begin = text[at], at
    signs: list[str] = []
    at += 1
    while at < len(text):
        if text[at] == quote:
            return "".join(signs), at + 1
        if text[at] == "\\" and text[at + 1 : at + 2] in (quote, "\\"):
            at += 1
        signs.append(text[at])
        at += 1
    raise wrong(begin + 1, f"this {quote} is not closed")
