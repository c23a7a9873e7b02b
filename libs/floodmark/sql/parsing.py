"""From text to a syntax tree and back, in Spark's dialect, within bounds.

sqlglot knows several hundred functions and rewrites them on the way through. Here every ordinary call stays a name and
its arguments (`exp.Anonymous`), so that Spark gets the function that was written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from floodmark.core.errors import InvalidInput
from floodmark.sql.functions import ALWAYS_CALLS, UNIT_FIRST
from floodmark.sql.grammar import (
    DefinitionDialect,
    DefinitionParser,
    with_names_called_all,
    with_signs_after_exponents,
    with_suffixed_numbers,
)
from floodmark.sql.lambdas import mark_parameters
from floodmark.sql.lexing import lexed
from floodmark.sql.rules import Rule, refused, shown
from floodmark.sql.struct_names import name_fields

TEXT_BYTES_MAX = 64 * 1024
TOKENS_MAX = 10_000
NESTING_MAX = 32  # a level costs the parser about 18 of Python's 1000 frames, and the caller has some of its own

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}


@contextmanager
def bounded_depth() -> Iterator[None]:
    """Around all work on trees: a chain such as a.b.c... is deep without brackets, and is walked by recursion."""
    try:
        yield
    except RecursionError:
        raise _too_deep() from None


def parse_select(text: str) -> exp.Select:
    """The one SELECT that the text is."""
    tree = parse_query(text)
    if isinstance(tree, exp.SetOperation | exp.Subquery):
        raise refused(
            Rule.ONE_TABLE, f"{shown(text)!r} is more than one SELECT; write a single one, without parentheses"
        )
    if not isinstance(tree, exp.Select):
        raise refused(Rule.NOT_SQL, f"{shown(text)!r} is not a SELECT")
    return tree


def parse_query(text: str) -> exp.Query:
    """The one query that the text is: a SELECT, or several put together."""
    tokens = tokens_of(text)
    if not tokens or tokens[0].token_type not in (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN):
        first = shown(tokens[0].text) if tokens else ""
        raise refused(Rule.NOT_SQL, f"the text begins with {first!r}; write a SELECT")
    try:
        statements = [s for s in DefinitionDialect().parser().parse(tokens, text) if s is not None]
        tree = statements[0] if len(statements) == 1 else None
        if tree is not None:
            tree = tree.transform(_normalised, copy=False)
            name_fields(tree)
            mark_parameters(tree)
    except ParseError as error:
        raise refused(Rule.NOT_SQL, _told(error)) from error
    except SqlglotError as error:
        raise refused(Rule.NOT_SQL, shown(str(error))) from error
    if tree is None:
        raise refused(Rule.NOT_SQL, f"there are {len(statements)} statements; write one SELECT")
    if not isinstance(tree, exp.Query):
        raise refused(Rule.NOT_SQL, f"{shown(text)!r} is not a SELECT")
    return tree


def render(tree: exp.Expr, *, used_up: bool = False) -> str:
    """Spark SQL for a tree: each identifier in backticks, no comments. `used_up`: the tree is not needed any more."""
    try:
        return tree.sql(
            DefinitionDialect,
            copy=not used_up,
            identify=True,
            comments=False,
            unsupported_level=ErrorLevel.RAISE,
        )
    except SqlglotError as error:
        if isinstance(error.__cause__, RecursionError):  # sqlglot reads some types once more while it writes them
            raise _too_deep() from None
        raise refused(Rule.UNSUPPORTED_SYNTAX, shown(str(error))) from error


def check_rendering(tree: exp.Query) -> None:
    """Refuse what is not read as it was written: then it cannot be known to mean the same to Spark."""
    text = render(tree)
    try:
        tree_again = parse_query(text)
        again = render(tree_again)
    except InvalidInput as error:
        raise refused(
            Rule.UNSUPPORTED_SYNTAX, f"{shown(text)} is not read again: {error}; write it another way"
        ) from error
    if again != text:
        raise refused(Rule.UNSUPPORTED_SYNTAX, f"{shown(text)} is read as {shown(again)}; write it another way")
    if _scopes(tree_again) != _scopes(tree):
        told = f"{shown(text)} has its subqueries and tables in other places than what was read; write it another way"
        raise refused(Rule.UNSUPPORTED_SYNTAX, told)


def _scopes(tree: exp.Query) -> list[tuple[str, int]]:
    """Each query, WITH and table, and how many of them are around it: what decides where a name is seen."""
    depths: dict[int, int] = {}
    found = []
    for node in tree.walk(bfs=False):
        depth = depths.get(id(node.parent), 0)
        if isinstance(node, exp.Query | exp.With | exp.CTE | exp.Table | exp.TableSample):
            found.append((type(node).__name__, depth))
            depth += 1
        depths[id(node)] = depth
    return found


def tokens_of(text: str) -> list[Token]:
    """The words and signs of a text, within the bounds of size, number and nesting."""
    size = len(text.encode(errors="surrogatepass"))
    if size > TEXT_BYTES_MAX:
        raise refused(Rule.NOT_SQL, f"the text has {size} bytes, at most {TEXT_BYTES_MAX} are read")
    try:
        cut = lexed(text)
        tokenize = DefinitionDialect().tokenize
        tokens = with_signs_after_exponents(_with_doubled_quotes(tokenize(cut.text), cut.text), tokenize)
        with_suffixed_numbers(tokens)
        cut.check(tokens)
        with_names_called_all(tokens)
    except (TokenError, ParseError) as error:
        raise refused(Rule.NOT_SQL, shown(str(error))) from error
    if len(tokens) > TOKENS_MAX:
        raise refused(Rule.NOT_SQL, f"the text has {len(tokens)} words and signs, at most {TOKENS_MAX} are read")
    _check_nesting(tokens)
    return tokens


def _with_doubled_quotes(tokens: list[Token], text: str) -> list[Token]:
    """'it''s' is one text with a quote in it, as Spark has it since version 4; sqlglot reads two."""
    joined: list[Token] = []
    end = -1
    for token in tokens:
        is_text = token.token_type is TokenType.STRING and bool(joined) and joined[-1].token_type is TokenType.STRING
        if is_text and token.start == end + 1 and text[token.start] == text[end]:
            joined[-1].text += text[end] + token.text
            joined[-1].end = token.end
        else:
            joined.append(token)
        end = token.end
    return joined


def _check_nesting(tokens: list[Token]) -> None:
    """Before parsing, so that what is accepted does not depend on how deep in its own calls the caller is."""
    depth = types = 0
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            depth -= 1
        elif token.token_type is TokenType.LT and before and before.token_type in DefinitionParser.NESTED_TYPE_TOKENS:
            types += 1
        if depth > NESTING_MAX or types > NESTING_MAX:
            raise _too_deep()


def _too_deep() -> Exception:
    return refused(Rule.NOT_SQL, f"the text is nested too deep, at most {NESTING_MAX} levels are read")


def _told(error: ParseError) -> str:
    first: dict[str, Any] = error.errors[0] if error.errors else {}
    if not first.get("line"):
        return shown(str(error))
    near = f"{(first.get('start_context') or '')[-20:]}{first.get('highlight') or ''}"
    description = str(first.get("description"))
    if "<class " in description:
        description = "something is missing here"
    told = description.partition(" but got <")[0]
    return f"line {first['line']}, column {first['col']}, at {shown(near)!r}: {told}"


def _normalised(node: exp.Expr) -> exp.Expr:
    """One spelling for what can be written in several ways."""
    if isinstance(node, exp.Anonymous):
        node.set("this", node.name.upper())
        if node.name.lower() in UNIT_FIRST and len(node.expressions) == 3:
            unit = node.expressions[0]
            if isinstance(unit, exp.Column) and len(unit.parts) == 1:
                unit.replace(exp.var(unit.name.upper()))
    elif isinstance(node, exp.Column) and is_bare(node.parts[0], *ALWAYS_CALLS):
        if len(node.parts) > 1:
            raise ParseError(f"{node.parts[0].name} is a function and has no fields; write it in `backticks`")
        return exp.Anonymous(this=node.name.upper())
    elif isinstance(node, exp.Select) and not node.expressions:
        raise ParseError("a SELECT has no outputs; write at least one before FROM")
    elif isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier) and is_bare(node.this, "table"):
        raise ParseError(f"{node.name} is a word of SQL here; write `{node.name}` for a table of that name, or SELECT")
    elif isinstance(node, exp.CTE) and not isinstance(node.this, exp.Query):
        raise ParseError(f"{node.alias} is given no query; write SELECT after AS (")
    elif isinstance(node, exp.Paren) and isinstance(node.this, exp.Alias):
        raise ParseError(f"the alias {node.this.alias} is inside parentheses; write it after them")
    elif isinstance(node, exp.Group) and len(node.expressions) == 1:
        named = node.expressions[0]
        if isinstance(named, exp.Column) and len(named.parts) == 1 and is_bare(named.this, "all"):
            node.set("expressions", None)
            node.set("all", value=True)
    return node


def is_bare(name: exp.Expr, *words: str) -> bool:
    """Whether it is one of these words, without quotes."""
    return not name.args.get("quoted") and name.name.lower() in words
