"""Parses a `--where` expression into a tree of conditions. All functions are pure. The grammar:

    either    = every ("or" every)*
    every     = term ("and" term)*
    term      = "not" term | "(" either ")" | condition
    condition = NAME OPERATOR VALUE | NAME "exists" | "has" "(" NAME ")" | STATE
              | ("since" | "until") VALUE

The case of keywords is ignored. A quoted name is always a tag. `selector` defines what the names
mean.
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
        name: The name, in lower case unless it is quoted.
        quoted: Whether the name is quoted.
        operator: One of `OPERATORS`, `exists`, or `is` for a name without an operator.
        value: The value to compare with; empty for `exists` and `is`.
        literal: Whether the value is quoted.
        column: The number of the character at which the name begins, from 1.
    """

    name: str
    quoted: bool
    operator: str
    value: str
    literal: bool
    column: int


class Not(NamedTuple):
    """Matches a record if the term does not match it."""

    term: "Node"


class Every(NamedTuple):
    """Matches a record if all terms match it."""

    terms: "Sequence[Node]"


class Either(NamedTuple):
    """Matches a record if at least one term matches it."""

    terms: "Sequence[Node]"


Node = Condition | Not | Every | Either


class Names(NamedTuple):
    """The names that have their own grammar in expressions.

    Attributes:
        states: Names that stand alone, such as `deleted`.
        times: Names whose value may be several unquoted words, such as `last week`.
        bounds: Names that take a value without an operator, such as `since`.
    """

    states: Sequence[str]
    times: Sequence[str]
    bounds: Sequence[str]


def parse(text: str, names: Names) -> Node:
    """Return the tree of an expression.

    Args:
        text: The expression, at most `MAX_CHARACTERS` long.
        names: The names with their own grammar.

    Raises:
        InvalidInput: The expression is malformed; the message gives the position.
    """
    if not isinstance(text, str):
        raise InvalidInput(
            f"the expression in where is of type {type(text).__name__}; pass a string"
        )
    if len(text) > MAX_CHARACTERS:
        raise InvalidInput(
            f"the expression in where is {len(text)} characters long; the limit is {MAX_CHARACTERS}"
        )
    if not text.strip():
        raise InvalidInput(
            "the expression in where is empty; write a condition, such as: "
            "type = fact and updated > 7d"
        )
    return _Parser(text, names).parse()


def error_at(column: int, problem: str) -> InvalidInput:
    """Return the error for a problem at a character of the expression."""
    return InvalidInput(f"the expression in where is invalid at character {column}: {problem}")


def conditions(node: Node) -> list[Condition]:
    """Return all conditions in a tree, in textual order."""
    if isinstance(node, Condition):
        return [node]
    terms = [node.term] if isinstance(node, Not) else node.terms
    return [condition for term in terms for condition in conditions(term)]


class _Token(NamedTuple):
    """A token: a `word`, a quoted `text`, a `sign` (an operator or a bracket), or the `end`."""

    kind: str
    text: str
    column: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "text")

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        return f'"{shown(self.text)}"'


class _Parser:
    """A recursive descent parser for one expression."""

    def __init__(self, text: str, names: Names) -> None:
        self._tokens = _tokenize(text)
        self._names = names
        self._lower_case_names = {*names.states, *names.times, *names.bounds}
        self._at = self._depth = self._count = 0

    def parse(self) -> Node:
        """Return the tree of the whole expression."""
        tree = self._either()
        if self._next.is_sign(")"):
            raise error_at(self._next.column, 'there is no "(" for this ")"')
        if self._next.kind != "end":
            raise error_at(
                self._next.column,
                f'{self._next} follows a condition; put "and" or "or" before it',
            )
        return tree

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        if token.kind != "end":
            self._at += 1
        return token

    def _either(self) -> Node:
        terms = [self._every()]
        while self._next.is_word("or"):
            self._take()
            terms.append(self._every())
        if len(terms) == 1:
            return terms[0]
        return Either(terms)

    def _every(self) -> Node:
        terms = [self._term()]
        while self._next.is_word("and"):
            self._take()
            terms.append(self._term())
        if len(terms) == 1:
            return terms[0]
        return Every(terms)

    def _term(self) -> Node:
        if not self._next.is_word("not") and not self._next.is_sign("("):
            return self._condition()
        token = self._take()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise error_at(
                token.column,
                f"it is nested more than {MAX_DEPTH} levels deep; write it with fewer brackets",
            )
        node = Not(self._term()) if token.kind == "word" else self._in_brackets(token)
        self._depth -= 1
        return node

    def _in_brackets(self, opening: _Token) -> Node:
        node = self._either()
        if self._next.kind == "end":
            raise error_at(opening.column, 'this "(" is not closed')
        token = self._take()
        if not token.is_sign(")"):
            raise error_at(
                token.column, f'{token} follows a condition; put "and", "or" or ")" before it'
            )
        return node

    def _condition(self) -> Condition:
        token = self._take()
        if not token.is_name or token.is_word(*_KEYWORDS):
            raise error_at(
                token.column, f"a condition is missing before {token}; write NAME = VALUE"
            )
        self._count += 1
        if self._count > MAX_CONDITIONS:
            raise error_at(token.column, f"it has more than {MAX_CONDITIONS} conditions; split it")
        if token.is_word("has") and self._next.is_sign("("):
            return self._has()
        is_quoted = token.kind == "text"
        name = token.text
        if not is_quoted and name.lower() in self._lower_case_names:
            name = name.lower()
        condition = Condition(name, is_quoted, "is", "", literal=False, column=token.column)
        if self._next.is_word("exists"):
            self._take()
            return condition._replace(operator="exists")
        if self._next.is_sign(*OPERATORS):
            return self._with_value(condition, self._take().text)
        if not is_quoted and name in self._names.bounds:
            return self._with_value(condition, "=")
        if not is_quoted and name in self._names.states:
            return condition
        plain = shown(token.text)
        if is_quoted:
            plain = f'"{plain}"'
        raise error_at(
            token.column, f"{token} is not a condition; write {plain} = VALUE, or {plain} exists"
        )

    def _has(self) -> Condition:
        self._take()
        token = self._take()
        if not token.is_name:
            raise error_at(token.column, "has() takes the name of a tag, such as has(project)")
        if not self._take().is_sign(")"):
            raise error_at(token.column, 'put ")" after the name, as in has(project)')
        is_quoted = token.kind == "text"
        return Condition(token.text, is_quoted, "exists", "", literal=False, column=token.column)

    def _with_value(self, condition: Condition, operator: str) -> Condition:
        """Read the value after an operator; return the complete condition."""
        condition = condition._replace(operator=operator)
        token = self._take()
        if token.kind == "text":
            return condition._replace(value=token.text, literal=True)
        if token.kind != "word" or token.is_word(*_KEYWORDS):
            if token.kind == "end":
                raise error_at(token.column, "a value is missing at the end")
            if token.is_sign("=") and operator == "=":
                raise error_at(token.column, "write a single =, as in type = fact")
            raise error_at(
                token.column,
                f"a value is missing before {token}; if {token} is the value, quote it",
            )
        words = [token.text]
        if not condition.quoted and condition.name in (*self._names.times, *self._names.bounds):
            while self._next.kind == "word" and not self._next.is_word(*_KEYWORDS):
                words.append(self._take().text)
        return condition._replace(value=" ".join(words))


def _tokenize(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        column, sign = at + 1, text[at]
        if sign.isspace():
            at += 1
            continue
        operator = next((known for known in OPERATORS if text.startswith(known, at)), None)
        if sign in _QUOTES:
            value, at = _read_quoted(text, at)
            tokens.append(_Token("text", value, column))
        elif sign in "()" or operator is not None:
            tokens.append(_Token("sign", operator or sign, column))
            at += len(operator or sign)
        elif sign in _ENDS_A_WORD:
            raise error_at(column, _explain_misplaced(sign))
        else:
            start = at
            while at < len(text) and not text[at].isspace() and text[at] not in _ENDS_A_WORD:
                at += 1
            tokens.append(_Token("word", text[start:at], column))
    return [*tokens, _Token("end", "", len(text) + 1)]


def _explain_misplaced(sign: str) -> str:
    if sign in _CURLY:
        return f"{sign} is not a quote here; use \" or '"
    if sign == ",":
        return (
            'a comma means nothing here; put "and" or "or" between conditions, and a value with a '
            "comma in quotes"
        )
    return f'"{sign}" is not an operator; use {" ".join(OPERATORS)}'


def _read_quoted(text: str, start: int) -> tuple[str, int]:
    """Return the quoted text that begins at an index, and the index after it.

    A backslash escapes the quote and itself.
    """
    quote, at = text[start], start + 1
    signs: list[str] = []
    while at < len(text):
        if text[at] == quote:
            return "".join(signs), at + 1
        if text[at] == "\\" and text[at + 1 : at + 2] in (quote, "\\"):
            at += 1
        signs.append(text[at])
        at += 1
    raise error_at(start + 1, f"this {quote} is not closed")
