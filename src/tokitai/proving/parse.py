"""A parser of the C++ that kernels are printed in: expressions, declarations, loops, lambdas, the heads of templates.

It reads the emitted source and the headers as they are compiled, not a copy of them. What it does not know is a
`ProofError` with the words it stopped at: nothing is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ProofError

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|(?P<pragma>\#\s*pragma[^\n]*)|(?P<number>0[xX][\da-fA-F.]+(?:[pP][+-]?\d+)?[uUlLf]*"
    r"|\d[\d']*\.?\d*(?:[eE][+-]?\d+)?[uUlLf]*)|(?P<word>[A-Za-z_]\w*)|(?P<string>\"(?:\\.|[^\"\\])*\")"
    r"|(?P<mark><<=|>>=|\.\.\.|->|\+\+|--|<<|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|::|[-+*/%&|^~!<>=?:;,.(){}\[\]])|\s+",
    re.DOTALL,
)
_DROPPED = {"INLINE_LAMBDA", "UNROLL", "ROLLED", "INLINE", "static", "inline", "noinline", "unused", "volatile"}
_QUALIFIERS = {"const", "constexpr"}
_CASTS = {"static_cast", "reinterpret_cast", "const_cast"}
_BUILTIN = {
    "int", "int32_t", "int64_t", "uint32_t", "uint64_t", "size_t", "uintptr_t", "uint16_t", "bool", "auto", "char",
    "void", "float", "double", "unsigned", "uint8_t",
}  # fmt: skip
_PRECEDENCE = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
_ASSIGN = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "|=", "&=", "^=")


@dataclass(frozen=True)
class Node:
    """A part of the source: its kind, and what it is made of."""

    kind: str
    args: tuple[Any, ...]
    line: str = ""

    def __repr__(self) -> str:
        return f"{self.kind}{self.args!r}"


@dataclass(frozen=True)
class Function:
    """A function of a header: its templates' parameters with defaults, its parameters with types, its body."""

    name: str
    template: tuple[tuple[str, str, Node | None], ...]  # kind (a type, or class), name, default
    params: tuple[tuple[str, str], ...]  # type, name
    body: Node


def preprocessed(text: str, defined: Mapping[str, int], files: Mapping[str, str] = {}) -> str:
    """The source with the branches of ``#if`` that these definitions choose; of ``files`` what it includes, once."""
    made: list[str] = []
    known: dict[str, Any] = dict(defined)
    seen: set[str] = set()

    def value(condition: str) -> bool:
        said = re.sub(
            r"defined\s*\(\s*(\w+)\s*\)|defined\s+(\w+)", lambda m: str(int((m[1] or m[2]) in known)), condition
        )
        said = re.sub(r"//.*", "", said).replace("&&", " and ").replace("||", " or ")
        said = re.sub(r"!(?!=)", " not ", said)

        def of(m: re.Match[str]) -> str:
            word = m[0]
            return word if word in ("and", "or", "not") else str(known.get(word, 0) or 0)

        said = re.sub(r"[A-Za-z_]\w*", of, said)
        return bool(eval(said, {"__builtins__": {}}))  # of numbers and operators alone

    def feed(source: str) -> None:
        stack: list[list[bool]] = []  # whether this branch is taken, and whether one was
        for line in source.replace("\\\n", " ").splitlines():
            m = re.match(r"\s*#\s*(\w+)\s*(.*)", line)
            if m and m[1] in ("if", "ifdef", "ifndef"):
                alive = all(s[0] for s in stack)
                word = m[2].split()[0]
                taken = alive and (value(m[2]) if m[1] == "if" else (word in known) == (m[1] == "ifdef"))
                stack.append([taken, taken or not alive])
            elif m and m[1] == "elif":
                stack[-1][0] = not stack[-1][1] and value(m[2])
                stack[-1][1] |= stack[-1][0]
            elif m and m[1] == "else":
                stack[-1] = [not stack[-1][1], True]
            elif m and m[1] == "endif":
                stack.pop()
            elif all(s[0] for s in stack):
                if m and m[1] == "define":
                    name, _, rest = m[2].partition(" ")
                    if "(" not in name:
                        rest = rest.split("//")[0].strip()
                        known[name] = int(rest) if re.fullmatch(r"-?\d+", rest) else known.get(rest, rest)
                elif m and m[1] == "include":
                    name = m[2].strip().strip('"')
                    if name in files and name not in seen:
                        seen.add(name)
                        feed(files[name])
                elif (m and m[1] == "pragma" and "omp" in m[2]) or not m:
                    made.append(line)

    feed(text)
    said = "\n".join(made)
    for name, content in known.items():
        if name in ("LANES",) or (isinstance(content, int) and name.startswith("PLAN_")):
            said = re.sub(rf"\b{name}\b", str(content), said)
    return said


class Parser:
    """Reads one text. ``templates`` are the names that may be followed by template arguments."""

    def __init__(self, text: str, templates: Collection[str] = (), types: Collection[str] = ()) -> None:
        self.templates, self.types = {*templates, *_CASTS}, {*types, *_BUILTIN}
        self.tokens: list[tuple[str, str]] = []
        found = ((m.lastgroup, m[0]) for m in _TOKEN.finditer(text) if m.lastgroup)
        self.coming = (t for t in found if t[0] != "word" or t[1] not in _DROPPED)
        self.at = 0

    # ------------------------------------------------------------------ words
    def peek(self, ahead: int = 0) -> str:
        return self.token(ahead)[1]

    def kind(self, ahead: int = 0) -> str:
        return self.token(ahead)[0]

    def token(self, ahead: int) -> tuple[str, str]:
        """The kind of a word, and the word; of neither behind the end. Words are read as they are asked for: a function
        needs none behind its own."""
        while self.at + ahead >= len(self.tokens):
            following = next(self.coming, None)
            if following is None:
                return "", ""
            self.tokens.append(following)
        return self.tokens[self.at + ahead]

    def take(self, word: str | None = None) -> str:
        found = self.peek()
        if (word is not None and found != word) or not found:
            self.fail(word or "more")
        self.at += 1
        return found

    def fail(self, wanted: str) -> None:
        """Raise a `ProofError` that shows where."""
        near = " ".join(t for _, t in self.tokens[max(0, self.at - 12) : self.at + 6])
        raise ProofError(f"the proof cannot read {near!r}; accepted here: {wanted}")

    def text_from(self, start: int) -> str:
        return " ".join(t for _, t in self.tokens[start : self.at])

    # ------------------------------------------------------------------ types
    def type_name(self) -> str | None:
        """The type that begins here, or None with nothing taken."""
        start = self.at
        while self.peek() in _QUALIFIERS or self.peek() == "typename":
            self.at += 1
        if self.kind() != "word":
            self.at = start
            return None
        name = self.take()
        while True:
            if self.peek() == "<" and name in self.templates | self.types:
                depth = 0
                while True:
                    word = self.take()
                    depth += (word == "<") - (word == ">") - 2 * (word == ">>")
                    name += word
                    if depth <= 0:
                        break
            elif self.peek() == "::":
                name += self.take() + self.take()
            else:
                break
        while self.peek() in ("const", "*", "&"):
            word = self.take()
            name += word if word != "const" else ""
        return name

    def is_declaration(self) -> bool:
        """Whether a declaration begins here: a type, then a name, then what may follow one."""
        start = self.at
        known = self.peek() in _QUALIFIERS
        first = self.peek()
        name = self.type_name()
        ok = (
            name is not None
            and self.kind() == "word"
            and self.peek(1) in ("=", ";", ",", "[", "(", "{", ":")
            and (known or first in self.types or self.peek(1) != "(" or name.endswith(("*", ">")) or True)
            and first not in ("return", "else", "delete", "new")
        )
        if name is not None and self.peek() == "(" and self.peek(1) == "&" and self.kind(2) == "word":
            ok = first in self.types or known  # a reference to an array
        self.at = start
        return ok

    # ------------------------------------------------------------------ statements
    def block(self) -> Node:
        self.take("{")
        found = []
        while self.peek() != "}":
            found.append(self.statement())
        self.take("}")
        return Node("block", tuple(found))

    def statement(self) -> Node:
        """One statement."""
        start = self.at
        word = self.peek()
        made: Node
        if self.kind() == "pragma":
            pragma = self.take()
            if " for" in pragma or " single" in pragma or " critical" in pragma:
                return Node("omp", (pragma, self.statement()))
            raise ProofError(f"the proof does not know {pragma!r}; accepted: for, single, critical")
        if word == "in_threads":
            while self.peek() != "{":
                self.at += 1
            body = self.block()
            self.take(")")
            self.take(";")
            return Node("omp", (word, body))
        if word == "{":
            return self.block()
        if word == ";":
            self.at += 1
            return Node("block", ())
        if word == "for":
            self.at += 1
            self.take("(")
            begin = Node("block", ()) if self.peek() == ";" else self.simple()
            if self.peek() == ":":
                self.take()
                over = self.expression()
                self.take(")")
                return Node("each", (begin, over, self.statement()))
            self.take(";")
            condition = Node("number", (1,)) if self.peek() == ";" else self.expression()
            self.take(";")
            step = Node("block", ()) if self.peek() == ")" else self.comma()
            head = self.text_from(start)
            self.take(")")
            return Node("for", (begin, condition, step, self.statement()), head)
        if word == "while":
            self.at += 1
            self.take("(")
            condition = self.comma()
            head = self.text_from(start)
            self.take(")")
            return Node("for", (Node("block", ()), condition, Node("block", ()), self.statement()), head)
        if word == "if":
            self.at += 1
            if self.peek() == "constexpr":
                self.at += 1
            self.take("(")
            condition = self.comma()
            self.take(")")
            then, other = self.statement(), Node("block", ())
            if self.peek() == "else":
                self.at += 1
                other = self.statement()
            return Node("if", (condition, then, other))
        if word in ("return", "break", "continue"):
            self.at += 1
            value = None if self.peek() == ";" else self.braces() if self.peek() == "{" else self.comma()
            self.take(";")
            return Node(word, (value,), self.text_from(start))
        if word in ("typedef", "using", "static_assert", "asm"):
            while self.take() != ";":
                pass
            return Node("block", (), self.text_from(start))
        if word == "struct":
            while self.take() != "{":
                pass
            depth = 1
            while depth:
                token = self.take()
                depth += (token == "{") - (token == "}")
            self.take(";")
            return Node("block", (), self.text_from(start))
        if word == "template":
            self.fail("a statement")
        made = self.simple()
        self.take(";")
        return Node(made.kind, made.args, self.text_from(start))

    def simple(self) -> Node:
        """A declaration or an expression, without what ends it."""
        if not self.is_declaration():
            return self.comma()
        start = self.at
        name = self.type_name()
        found = []
        while True:
            stars = ""
            while self.peek() in ("*", "&", "const"):
                stars += self.take()
            if self.peek() == "(" and self.peek(1) == "&":
                self.at += 2
                variable = self.take()
                self.take(")")
            else:
                variable = self.take()
            sides = []
            while self.peek() == "[":
                self.at += 1
                sides.append(None if self.peek() == "]" else self.expression())
                self.take("]")
            value = None
            if self.peek() == "=":
                self.at += 1
                value = self.braces() if self.peek() == "{" else self.expression()
            elif self.peek() in ("(", "{"):
                value = Node("braces", tuple(self.arguments(self.peek())))
            found.append((f"{name}{stars}", variable, tuple(sides), value))
            if self.peek() != ",":
                break
            self.at += 1
        return Node("declare", tuple(found), self.text_from(start))

    def braces(self) -> Node:
        return Node("braces", tuple(self.arguments("{")))

    def arguments(self, opening: str) -> list[Node]:
        closing = {"(": ")", "{": "}", "[": "]"}[opening]
        self.take(opening)
        found = []
        while self.peek() != closing:
            found.append(self.braces() if self.peek() == "{" else self.expression())
            if self.peek() == "...":
                self.at += 1
            if self.peek() == ",":
                self.at += 1
        self.take(closing)
        return found

    # ------------------------------------------------------------------ expressions
    def comma(self) -> Node:
        first = self.expression()
        found = [first]
        while self.peek() == ",":
            self.at += 1
            found.append(self.expression())
        return first if len(found) == 1 else Node("comma", tuple(found))

    def expression(self) -> Node:
        """An expression without a comma at its top."""
        left = self.binary(0)
        if self.peek() == "?":
            self.at += 1
            then = self.expression()
            self.take(":")
            left = Node("choose", (left, then, self.expression()))
        if self.peek() in _ASSIGN:
            mark = self.take()
            return Node("assign", (mark, left, self.braces() if self.peek() == "{" else self.expression()))
        return left

    def binary(self, level: int) -> Node:
        if level == len(_PRECEDENCE):
            return self.unary()
        left = self.binary(level + 1)
        shifts = ">>" in _PRECEDENCE[level]  # two tokens, as template arguments may end in both
        while (self.peek() in _PRECEDENCE[level] and self.kind() == "mark") or (
            shifts and self.peek() == self.peek(1) == ">"
        ):
            mark = self.take() + (self.take() if shifts and self.peek() == ">" else "")
            left = Node("binary", (mark, left, self.binary(level + 1)))
        return left

    def unary(self) -> Node:
        word = self.peek()
        if self.kind() == "mark" and word in ("-", "!", "~", "+", "&", "*", "++", "--"):
            self.at += 1
            return Node("unary", (word, self.unary()))
        if word == "sizeof":
            self.at += 1
            if self.peek() == "...":
                self.at += 1
            if self.peek() == "(":
                self.at += 1
                start = self.at
                depth = 1
                while depth:
                    token = self.take()
                    depth += (token == "(") - (token == ")")
                return Node("sizeof", ("".join(t for _, t in self.tokens[start : self.at - 1]),))
            return Node("sizeof", (self.take(),))
        return self.postfix()

    def postfix(self) -> Node:
        made = self.primary()
        while True:
            word = self.peek()
            if word == "(":
                made = Node("call", (made, tuple(self.arguments("("))))
            elif (
                word == "{"
                and made.kind == "name"
                and (made.args[0] in self.types or made.args[1] is not None or made.args[0][:1].isupper())
            ):
                made = Node("call", (made, tuple(self.arguments("{"))))
            elif word == "[":
                self.at += 1
                made = Node("index", (made, self.expression()))
                self.take("]")
            elif word in (".", "->"):
                self.at += 1
                if self.peek() == "template":
                    self.at += 1
                name, args = self.take(), None
                if self.peek() == "<" and name in self.templates:
                    args = self.template_arguments()
                made = Node("member", (made, name, args))
            elif word in ("++", "--"):
                self.at += 1
                made = Node("after", (word, made))
            else:
                return made

    def template_arguments(self) -> tuple[Node, ...]:
        """Between < and >: types as names, numbers as expressions above comparisons."""
        self.take("<")
        found = []
        while self.peek() != ">":
            start = self.at
            name = self.type_name()
            if name is not None and self.peek() in (",", ">"):
                found.append(Node("name", (name, None)))
            else:
                self.at = start
                found.append(self.additive_argument())
            if self.peek() == ",":
                self.at += 1
        self.take(">")
        return tuple(found)

    def additive_argument(self) -> Node:
        left = self.binary(8)
        while self.peek() in ("==", "!=", "&&", "<="):
            mark = self.take()
            left = Node("binary", (mark, left, self.binary(8)))
        return left

    def primary(self) -> Node:
        kind, word = self.kind(), self.peek()
        if kind == "number":
            self.at += 1
            return _number(word)
        if kind == "string":
            self.at += 1
            return Node("string", (word,))
        if word == "[":
            return self.closure()
        if word == "(":
            start = self.at
            self.at += 1
            name = self.type_name()
            if name is not None and name.rstrip("*&") in _BUILTIN and self.peek() == ")":
                self.at += 1
                return Node("cast", (name, self.unary()))
            self.at = start + 1
            made = self.comma()
            self.take(")")
            return made
        if kind != "word":
            self.fail("an expression")
        if word in _CASTS:
            self.at += 1
            self.take("<")
            name = self.type_name()
            self.take(">")
            self.take("(")
            made = self.comma()
            self.take(")")
            return Node("cast", (name, made))
        name = self.take()
        args = None
        while True:
            if self.peek() == "::":
                self.at += 1
                name += "::" + self.take()
            elif self.peek() == "<" and args is None and name.rpartition("::")[2] in self.templates and self.closes():
                args = self.template_arguments()
                if self.peek() == "::":
                    shown = ",".join(_shown(a) for a in args)
                    name, args = f"{name}<{shown}>", None
            else:
                return Node("name", (name, args))

    def closes(self) -> bool:
        """Whether the < here is matched by a > before a statement ends."""
        depth, i = 0, 0
        while True:
            word = self.peek(i)
            if word in (";", "{", "}", ""):
                return False
            depth += (word == "<") - (word == ">")
            if word == ")" and depth == 1 and "(" not in [self.peek(j) for j in range(i)]:
                return False
            if depth == 0:
                return True
            i += 1

    def closure(self) -> Node:
        self.take("[")
        while self.take() != "]":
            pass
        params: list[tuple[str, str]] = []
        if self.peek() == "(":
            params = self.parameters()
        if self.peek() == "->":
            self.at += 1
            self.type_name()
        return Node("closure", (tuple(params), self.block()))

    def parameters(self) -> list[tuple[str, str]]:
        self.take("(")
        found = []
        while self.peek() != ")":
            start = self.at
            name = self.type_name() or ""
            if self.peek() == "...":
                self.take()
                name += "..."
            variable = ""
            if self.peek() == "(" and self.peek(1) == "&":
                self.at += 2
                variable = self.take() if self.kind() == "word" else ""
                self.take(")")
                name += "[]"
            elif self.kind() == "word":
                variable = self.take()
            while self.peek() == "[":
                while self.take() != "]":
                    pass
                name += "[]"
            found.append((name, variable))
            if self.peek() == ",":
                self.at += 1
            if self.at == start:
                self.fail("a parameter")
        self.take(")")
        return found


def _number(word: str) -> Node:
    plain = word.replace("'", "")
    if re.fullmatch(r"0[xX][\da-fA-F]+[uUlL]*|\d+[uUlL]*", plain):
        digits = plain.rstrip("uUlL")
        kind = "int64_t" if "l" in plain.lower() else "uint32_t" if "u" in plain.lower() else "int"
        return Node("number", (int(digits, 0), kind))
    return Node("real", (word,))


def _shown(n: Node) -> str:
    return str(n.args[0]) if n.kind in ("name", "number") else repr(n)


def templates_in(text: str) -> set[str]:
    """The names of all templates."""
    found = set(
        re.findall(
            r"template\s*<[^;{]*?>\s*(?:INLINE|static|inline|constexpr|struct|class|auto|using|\w+|\s|\*|&)*?"
            r"\b(\w+)\s*(?:\(|\{|=|$|;|:)",
            text,
        )
    )
    return found | {"min", "Chunk", "Share", "Stage", "Operand"}


def functions_of(
    text: str, names: Sequence[str], templates: Collection[str], types: Collection[str]
) -> dict[str, list[Function]]:
    """The functions of these names in a text, all overloads in its order."""
    found: dict[str, list[Function]] = {n: [] for n in names}
    for name in names:
        for m in re.finditer(rf"^(?:template\s*<(?P<t>[^\n]*)>\s*)?(?P<h>[^\n;#(]*?)\b{name}\(", text, re.MULTILINE):
            parser = Parser(text[m.start() :], templates, types)
            made = _function(parser, name)
            if made is not None:
                found[name].append(made)
    return found


def _function(p: Parser, name: str) -> Function | None:
    heads: list[tuple[str, str, Node | None]] = []
    if p.peek() == "template":
        p.take()
        p.take("<")
        while p.peek() != ">":
            kind = p.take()
            kind += p.take() if p.peek() == "..." else ""
            variable = p.take() if p.kind() == "word" else ""
            default = None
            if p.peek() == "=":
                p.take()
                default = p.additive_argument()
            heads.append((kind, variable, default))
            if p.peek() == ",":
                p.take()
        p.take(">")
    while not (p.peek() == name and p.peek(1) == "("):
        if p.peek() in (";", "}", "{", "=", "return", ""):
            return None
        p.at += 1
    p.at += 1
    try:
        params = p.parameters()
    except ProofError:
        return None
    if p.peek() == "const":
        p.at += 1
    if p.peek() != "{":
        return None
    return Function(name, tuple(heads), tuple(params), p.block())
