"""Definitions are found in each language and distinguished from mentions."""

import pytest

from memories.anchors import contents

DEFINED = {
    "a.py": [
        "def lock_order(a):", "    async def lock_order(self):", "class lock_order(Base):",
        "lock_order = 3", "lock_order: int = 3", "    self.lock_order = 1", "a, lock_order = 1, 2",
    ],
    "a.ts": [
        "export async function lock_order(a) {", "export default class lock_order {",
        "export interface lock_order {", "export const lock_order = () => 3", "  lock_order(a) {",
        "type lock_order = string", "  private lock_order: number = 3",
        "module.exports.lock_order = 3",
    ],
    "a.go": [
        "func lock_order(a int) {", "func (s *Service) lock_order() error {",
        "type lock_order struct {", "const lock_order = 3", "\tlock_order := 3",
    ],
    "a.rs": [
        "pub fn lock_order() {", "pub(crate) async fn lock_order() {", "struct lock_order;",
        "pub trait lock_order {", "const lock_order: u8 = 3;", "macro_rules! lock_order {",
    ],
    "A.java": [
        "public final class lock_order {", "    public static int lock_order(int a) {",
        "    private final Map<String, List<Integer>> lock_order = x;", "interface lock_order {",
        "    public @interface lock_order {",
    ],
    "a.c": [
        "int lock_order(int a) {", "#define lock_order 3", "struct lock_order {",
        "static const int lock_order = 3;", "typedef struct x lock_order;", "int lock_order(int);",
    ],
    "a.cpp": [
        "void Service::lock_order(int a) const {", "class lock_order : public Base {",
        "using lock_order = int;", "namespace lock_order {", "  virtual int lock_order() = 0;",
    ],
    "a.rb": [
        "  def lock_order(a)", "def self.lock_order", "class lock_order < Base",
        "module lock_order", "attr_reader :other, :lock_order", "lock_order = 3",
    ],
    "a.sh": [
        "lock_order() {", "function lock_order {", "export lock_order=3", "alias lock_order='x'",
    ],
}  # fmt: skip
MENTIONED = {
    "a.py": ["# def lock_order():", "x = lock_order(3)", "def lock_order_2():", "lock_order == 3"],
    "a.ts": ["// function lock_order() {", "return lock_order(3);", "if (a.lock_order === 3) {"],
    "a.go": ["// func lock_order() {", "return lock_order(3)", "func lock_order2() {"],
    "a.rs": ["// fn lock_order() {", "let x = lock_order(3);", "fn lock_order_2() {"],
    "A.java": ["// class lock_order {", "return lock_order(3);", "class lock_order2 {"],
    "a.c": ["// int lock_order(int a) {", "  lock_order(3);", "#define lock_order2 3"],
    "a.rb": ["# def lock_order", "puts lock_order", "lock_order == 3"],
    "a.sh": ["# lock_order() {", "lock_order 3", "echo $lock_order"],
}


@pytest.mark.parametrize(
    ("path", "line"), [(path, line) for path, lines in DEFINED.items() for line in lines]
)
def test_a_definition_is_found(path: str, line: str) -> None:
    assert contents.defines_symbol(path, f"first\n{line}\nlast\n", "lock_order")


@pytest.mark.parametrize(
    ("path", "line"), [(path, line) for path, lines in MENTIONED.items() for line in lines]
)
def test_a_mention_is_not_a_definition(path: str, line: str) -> None:
    assert not contents.defines_symbol(path, f"first\n{line}\nlast\n", "lock_order")


def test_a_method_needs_its_class() -> None:
    text = "class Cart:\n    def total(self): ...\n"
    assert contents.defines_symbol("a.py", text, "Cart.total")
    assert not contents.defines_symbol("a.py", text, "Basket.total")


def test_other_files_have_no_known_language() -> None:
    assert not contents.knows_language("docker-compose.yml")
    assert not contents.knows_language("Makefile")


@pytest.mark.parametrize(
    ("text", "literal", "expected"),
    [
        ('requires-python = ">=3.11"', "requires-python >=3.11", True),
        ('requires-python = ">=3.12"', "requires-python >=3.11", False),
        ('"port": 5433,', "port 5433", True),
        ("PORT=5433", "PORT=5433", True),
        ("PORT: int = 5433", "PORT = 5433", True),
        ('- "15433:5432"', "5433", False),
        ("version 1.2.3", "1.2", False),
        ("limit = -5", "limit 5", False),
        ("timeout = 60  # was 30", "timeout 30", False),
        ("'timeout' => 30", "timeout 30", True),
        ("a\nb", "a b", False),
    ],
)
def test_a_literal_matches_whole_words_in_order(text: str, literal: str, expected: bool) -> None:
    assert contents.contains_literal(text, literal) is expected
