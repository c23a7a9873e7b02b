"""Reads the head of a statement word by word. What is text, a name or a sign is the tokenizer's to say, never ours."""

from collections.abc import Callable
from typing import TypeVar

from sqlglot.tokenizer_core import Token, TokenType

from floodmark.core.errors import InvalidInput
from floodmark.sql.parsing import tokens_of
from floodmark.sql.rules import shown
from floodmark.sql.statements import StatementRule

T = TypeVar("T")
_NO_WORDS = {TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER}


class Cursor:
    """The tokens of exactly one statement, and how far they are read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _one_statement(tokens_of(text))
        self._at = 0

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self._at >= len(self._tokens)

    def take(self, *words: str) -> bool:
        """Read these words if they come next. A quoted name or a text is never a word."""
        ahead = self._tokens[self._at : self._at + len(words)]
        if len(ahead) < len(words) or any(not _is_word(t, w) for t, w in zip(ahead, words, strict=True)):
            return False
        self._at += len(words)
        return True

    def take_last(self, *words: str) -> bool:
        """Read these words if the statement ends with them."""
        tail = self._tokens[max(self._at, len(self._tokens) - len(words)) :]
        if len(tail) < len(words) or any(not _is_word(t, w) for t, w in zip(tail, words, strict=True)):
            return False
        del self._tokens[-len(words) :]
        return True

    def step_back(self) -> None:
        self._at -= 1

    # -- reading ---------------------------------------------------------------------------------------------------

    def expect(self, *words: str) -> None:
        if not self.take(*words):
            raise self.refusal(f"write {' '.join(words)} here")

    def name(self, what: str) -> str:
        """One name, quoted or not; case does not matter."""
        token = self._next(f"the name of a {what} is missing")
        if token.token_type is not TokenType.IDENTIFIER and not token.text.replace("_", "").isalnum():
            raise self.refusal(f"{token.text!r} is not the name of a {what}", back=1)
        if token.token_type in (TokenType.STRING, TokenType.NUMBER):
            raise self.refusal(f"the name of a {what} stands without quotes", back=1)
        return token.text.lower()

    def column(self) -> str:
        """The name of a column, as it is spelt."""
        token = self._next("the name of a column is missing")
        if token.token_type in (TokenType.STRING, TokenType.NUMBER):
            raise self.refusal("the name of a column stands without quotes, or in `backticks`", back=1)
        return token.text

    def text(self, what: str) -> str:
        token = self._next(f"{what} is missing: write it in quotes")
        if token.token_type is not TokenType.STRING:
            raise self.refusal(f"{what} is written in quotes", back=1)
        return token.text

    def time(self, what: str) -> str:
        """A time in quotes, or milliseconds as a number; TIMESTAMP '...' is fine too."""
        self.take("TIMESTAMP")
        token = self._next(f"{what} is missing: write a time in quotes")
        if token.token_type not in (TokenType.STRING, TokenType.NUMBER):
            raise self.refusal(f"{what} is a time in quotes, such as '2014-01-05T10:00Z'", back=1)
        return token.text

    def pairs(self, value: Callable[["Cursor"], T]) -> dict[str, T]:
        """('key' = value, ...), keys in lower case."""
        found: dict[str, T] = {}
        self.expect("(")
        while True:
            key = self._key()
            if key in found:
                raise InvalidInput(
                    StatementRule.DUPLICATE_PROPERTY, f"property {shown(key)!r} is there twice; keep one"
                )
            found[key] = value(self)
            if not self.take(","):
                break
        self.expect(")")
        return found

    def _key(self) -> str:
        token = self._next("a property is missing: write 'name' = 'value'")
        if token.token_type in (TokenType.L_PAREN, TokenType.R_PAREN, TokenType.COMMA, TokenType.EQ):
            raise self.refusal("a property is missing: write 'name' = 'value'", back=1)
        return token.text.lower()

    def value(self) -> str:
        self.expect("=")
        return self._next("a value is missing after =").text

    def items(self) -> list[str]:
        """The parts of a list in parentheses, each as it was written."""
        self.expect("(")
        parts, depth, first = [], 0, self._at
        while True:
            token = self._next("a closing parenthesis is missing")
            if token.token_type is TokenType.L_PAREN:
                depth += 1
            elif token.token_type in (TokenType.R_PAREN, TokenType.COMMA) and depth == 0:
                parts.append(self._between(first, self._at - 1))
                first = self._at
                if token.token_type is TokenType.R_PAREN:
                    return parts
            elif token.token_type is TokenType.R_PAREN:
                depth -= 1

    def rest(self) -> str:
        """Everything that is left, as it was written."""
        if self.done:
            raise self.refusal("the statement ends too early")
        found = self._between(self._at, len(self._tokens))
        self._at = len(self._tokens)
        return found

    def end(self) -> None:
        if not self.done:
            raise self.refusal(
                f"nothing can follow here; leave out {shown(self._between(self._at, len(self._tokens)))}"
            )

    def refusal(self, what: str, *, back: int = 0) -> InvalidInput:
        at = min(self._at - back, len(self._tokens))
        before = self._tokens[max(0, at - 3) : at]
        near = self._text[before[0].start : before[-1].end + 1] if before else ""
        where = f"after {shown(near)!r}: " if near else ""
        return InvalidInput(StatementRule.STATEMENT_SYNTAX, f"{where}{what}")

    def _next(self, missing: str) -> Token:
        if self.done:
            raise self.refusal(missing)
        self._at += 1
        return self._tokens[self._at - 1]

    def _between(self, first: int, end: int) -> str:
        if first >= end:
            raise self.refusal("something is missing here")
        return self._text[self._tokens[first].start : self._tokens[end - 1].end + 1]


def _one_statement(tokens: list[Token]) -> list[Token]:
    """Without its closing semicolons. What follows one is another statement, and none of it is looked at."""
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        tokens.pop()
    if any(token.token_type is TokenType.SEMICOLON for token in tokens):
        raise InvalidInput(
            StatementRule.ONE_STATEMENT, "there is more than one statement; send each in a request of its own"
        )
    if not tokens:
        raise InvalidInput(StatementRule.STATEMENT_SYNTAX, "there is no statement; write one, such as SHOW TABLES")
    return tokens


def _is_word(token: Token, word: str) -> bool:
    return token.token_type not in _NO_WORDS and token.text.upper() == word
