"""Comments and quotes by the rules of Spark's lexer, `SqlBaseLexer.g4`: sqlglot ends some of them elsewhere.

-- ...          to the end of the line, and over it when the line ends with a backslash
/* ... */       as many as are nested in it; one that is not closed is an error
/*+ ... */      a hint, which comes right after SELECT
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

_PIECE = re.compile(
    r"""
      (?P<line> -- (?: \\\n | [^\r\n] )* )
    | (?P<hint> /\*\+ )
    | (?P<comment> /\* )
    | (?P<end> \*/ )
    | (?P<template> \{\# )
    | (?P<quoted> (?<!\w)[rR]'[^']*' | (?<!\w)[rR]"[^"]*"
                | '(?: [^'\\] | \\. | '' )*' | "(?: [^"\\] | \\. | "" )*" | `(?: [^`] | `` )*` )
    """,
    re.VERBOSE | re.DOTALL,
)
_NESTED = re.compile(r"/\*(?!\+)|\*/")
_LETTERS = re.compile(r"[rRxX]?")
_QUOTED = {TokenType.STRING, TokenType.RAW_STRING, TokenType.HEX_STRING, TokenType.IDENTIFIER}


@dataclass(frozen=True, slots=True)
class Lexed:
    """A text without its comments, which are blanks: what is left stands where it stood."""

    text: str
    quoted: frozenset[tuple[int, int]]
    """Where each text and each quoted name begins and ends."""
    hints: int

    def check(self, tokens: Sequence[Token]) -> None:
        """Refuse what the tokenizer takes for another text, name or hint than Spark does."""
        found = frozenset(self._quoted_by(tokens))
        if found != self.quoted:
            start, _ = min(found ^ self.quoted)
            raise ParseError(
                f"quotes near {self.text[max(0, start - 20) : start + 20]!r} are not Spark's; write 'text'"
            )
        if sum(token.token_type is TokenType.HINT for token in tokens) != self.hints:
            raise ParseError("a hint stands right after SELECT; leave out /*+ ... */ elsewhere")

    def _quoted_by(self, tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
        for token in tokens:
            if token.token_type is TokenType.HEX_STRING and self.text[token.start] == "0":
                raise ParseError(
                    f"{self.text[token.start : token.end + 1]!r} is a name to Spark; write X'...' or `...`"
                )
            if token.token_type in _QUOTED:
                letters = _LETTERS.match(self.text, token.start)
                assert letters is not None, "no letter at all is found too"
                yield letters.end(), token.end


def lexed(text: str) -> Lexed:
    """The text as Spark cuts it up. Several hints in a row become one, which means the same to it."""
    pieces: list[str] = []
    quoted: set[tuple[int, int]] = set()
    hints = at = 0
    in_hint = False
    closed: int | None = None
    for kind, start, end in _pieces(text):
        between, found = text[at:start], text[start:end]
        at = end
        if between.strip() or kind == "quoted":
            closed = None
        if kind == "hint" and in_hint:
            raise ParseError("a hint begins inside of another; close the first with */")
        if kind == "end" and not in_hint:
            raise ParseError("*/ ends no comment; leave it out")
        if kind == "template":
            raise ParseError("{# begins no comment; write /* ... */")
        if in_hint and kind == "quoted" and ("*/" in found or "/*" in found):
            raise ParseError(f"{found!r} cannot be in a hint; leave it out")
        if kind in ("line", "comment"):
            found = _blank(found)
        elif kind == "quoted" and not in_hint:
            letters = _LETTERS.match(text, start)
            assert letters is not None, "no letter at all is found too"
            quoted.add((letters.end(), end - 1))
        elif kind == "hint" and closed is not None:
            in_hint = True
            pieces[closed], found = "  ", "   "
        elif kind == "hint":
            in_hint = True
            hints += 1
        elif kind == "end":
            in_hint = False
            closed = len(pieces) + 1
        pieces += (between, found)
    if in_hint:
        raise ParseError("a hint is not closed; write */ behind it")
    return Lexed("".join((*pieces, text[at:])), frozenset(quoted), hints)


def _pieces(text: str) -> Iterator[tuple[str, int, int]]:
    at = 0
    while (found := _PIECE.search(text, at)) is not None:
        kind, at = str(found.lastgroup), found.end()
        if kind == "comment":
            at = _closed(text, at)
        yield kind, found.start(), at


def _closed(text: str, at: int) -> int:
    """Where a comment ends whose /* ends here."""
    depth = 1
    while depth:
        if (found := _NESTED.search(text, at)) is None:
            raise ParseError("a comment is not closed; write */ behind it")
        depth += 1 if found.group() == "/*" else -1
        at = found.end()
    return at


def _blank(comment: str) -> str:
    return re.sub(r"[^\r\n]", " ", comment)
