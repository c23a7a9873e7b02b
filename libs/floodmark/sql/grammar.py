"""Spark's grammar for sqlglot: which operator binds tighter is Spark's own, level by level.

sqlglot reads `a | b & c` as `(a | b) & c` and Spark does not. So operators are not read by sqlglot at all but by the
ladder of Spark's `SqlBaseParser.g4`, and every operand that is made of several is put in parentheses in the tree:
whoever writes the tree out, for whichever reader, writes them too.

    booleanExpression   OR < AND < NOT < one predicate (BETWEEN, IN, LIKE, IS ...)
    valueExpression     = < | < ^ < & < shifts < + - || < * / % DIV < signs and ~
    primaryExpression   a[0], a.b, a::INT, a COLLATE x
"""

import re
from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

_OWN_SYNTAX = ("CAST", "TRY_CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM")
_SUFFIXED_NUMBER = re.compile(r"(?:\d+[LSY]|\d+(?:\.\d*)?(?:E[+-]?\d+)?(?:BD|D|F))", re.IGNORECASE | re.ASCII)
"""Numbers that say their type. What follows them may be no letter, or the whole is a name."""

_COMPARISON, _SHIFT, _SUM, _PRODUCT = 0, 4, 5, 6
_OPERATORS: dict[TokenType, tuple[int, type[exp.Expr]]] = {
    TokenType.EQ: (_COMPARISON, exp.EQ),
    TokenType.NEQ: (_COMPARISON, exp.NEQ),
    TokenType.NULLSAFE_EQ: (_COMPARISON, exp.NullSafeEQ),
    TokenType.LT: (_COMPARISON, exp.LT),
    TokenType.LTE: (_COMPARISON, exp.LTE),
    TokenType.GT: (_COMPARISON, exp.GT),
    TokenType.GTE: (_COMPARISON, exp.GTE),
    TokenType.PIPE: (1, exp.BitwiseOr),
    TokenType.CARET: (2, exp.BitwiseXor),
    TokenType.AMP: (3, exp.BitwiseAnd),
    TokenType.PLUS: (_SUM, exp.Add),
    TokenType.DASH: (_SUM, exp.Sub),
    TokenType.DPIPE: (_SUM, exp.DPipe),
    TokenType.STAR: (_PRODUCT, exp.Mul),
    TokenType.SLASH: (_PRODUCT, exp.Div),
    TokenType.MOD: (_PRODUCT, exp.Mod),
    TokenType.DIV: (_PRODUCT, exp.IntDiv),
}
_LEVELS = {kind: level for level, kind in _OPERATORS.values()}
_SHIFTS = {"<<": "SHIFTLEFT", ">>": "SHIFTRIGHT", ">>>": "SHIFTRIGHTUNSIGNED"}
_SIGNS = ("==", "=>", "->", "::", "||", "<=", ">=", "<>", "!=", "<=>", "/*", "/*+", "{{", "{%")
"""Of several characters, in Spark: sqlglot knows more, such as ~~, which is no sign there but two. The last ones begin
templates, which are refused."""
_PREDICATES = (TokenType.BETWEEN, TokenType.IN, TokenType.LIKE, TokenType.ILIKE, TokenType.RLIKE)
_TYPED_TEXTS = {
    "DATE": exp.DType.DATE,
    "TIMESTAMP": exp.DType.TIMESTAMP,
    "TIMESTAMP_LTZ": exp.DType.TIMESTAMPLTZ,
    "TIMESTAMP_NTZ": exp.DType.TIMESTAMPNTZ,
}
_COMPOUND = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Escape, exp.Predicate)
_WHOLE_ALREADY = (exp.Paren, exp.Func, exp.Dot, exp.SubqueryPredicate, exp.Subquery)
"""Of those, the ones that begin and end themselves: calls, fields, what is in parentheses."""


def operand(tree: Any) -> Any:
    """In parentheses, unless nobody could take it apart. A negative number is one number."""
    is_compound = isinstance(tree, _COMPOUND) and not isinstance(tree, _WHOLE_ALREADY)
    is_number = isinstance(tree, exp.Neg) and isinstance(tree.this, exp.Literal)
    return exp.Paren(this=tree) if is_compound and not is_number else tree


_PLAIN_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
"""Without a suffix or an exponent."""


class DefinitionParser(SparkParser):
    """Spark's grammar without sqlglot's knowledge of functions, and without its operators."""

    FUNCTIONS: ClassVar[dict[str, Callable[..., exp.Expr]]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
        name: parse for name, parse in SparkParser.FUNCTION_PARSERS.items() if name in _OWN_SYNTAX
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
        name: parse for name, parse in SparkParser.NO_PAREN_FUNCTION_PARSERS.items() if name in ("CASE", "IF")
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {}  # a column of that name goes first, as in Spark
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}  # array(1, 2)[0] is an element, not another array
    COLUMN_OPERATORS: ClassVar[dict[TokenType, Any]] = {
        token: made
        for token, made in SparkParser.COLUMN_OPERATORS.items()
        if token in (TokenType.DOT, TokenType.DCOLON)
    }
    CAST_COLUMN_OPERATORS: ClassVar[set[TokenType]] = {TokenType.DCOLON}
    CONJUNCTION: ClassVar[dict[TokenType, type[exp.Expr]]] = {TokenType.AND: exp.And}
    DISJUNCTION: ClassVar[dict[TokenType, type[exp.Expr]]] = {TokenType.OR: exp.Or}

    def _replace_lambda(self, node: exp.Expr | None, _: list[exp.Expr]) -> exp.Expr | None:
        return node  # which names are parameters is decided for the whole text, and as Spark does it

    def _parse_csv(self, parse_method: Callable[[], Any], sep: TokenType = TokenType.COMMA) -> list[Any]:
        """Nothing may be missing. In Spark, `SELECT a, FROM t` has a column called FROM, and no table."""
        items = [parse_method()]
        while self._match(sep):
            items.append(parse_method())
        if len(items) > 1 and None in items:
            self.raise_error("a comma has nothing before or after it")
        return [item for item in items if item is not None]

    def _parse_join(self, *args: Any, **options: Any) -> Any:
        at_comma = self._curr is not None and self._curr.token_type is TokenType.COMMA
        made = super()._parse_join(*args, **options)
        if made is None and at_comma:
            self.raise_error("a comma has no table after it")
        return made

    def _parse_alias(self, *args: Any, **options: Any) -> Any:
        return self._named(lambda: super(DefinitionParser, self)._parse_alias(*args, **options))

    def _parse_table_alias(self, *args: Any, **options: Any) -> Any:
        return self._named(lambda: super(DefinitionParser, self)._parse_table_alias(*args, **options))

    def _parse_table_sample(self, *args: Any, **options: Any) -> exp.TableSample | None:
        """Spark's own forms, right behind the name of the table."""
        if not self._match(TokenType.TABLE_SAMPLE):
            return None
        if any(args) or any(options.values()):
            self.raise_error("TABLESAMPLE belongs before the table's alias")
        if not self._match(TokenType.L_PAREN):
            self.raise_error("expected ( after TABLESAMPLE")
        made = exp.TableSample()
        if self._match_text_seq("BUCKET"):
            made.set("bucket_numerator", self._parse_number())
            if not self._match_text_seq("OUT", "OF"):
                self.raise_error("expected OUT OF")
            made.set("bucket_denominator", self._parse_number())
        elif (number := self._parse_number()) is not None and self._match(TokenType.PERCENT):
            made.set("percent", number)
        elif number is not None and self._match(TokenType.ROWS):
            made.set("size", number)
        else:
            self.raise_error("expected 10 PERCENT, 10 ROWS or BUCKET 1 OUT OF 10")
        self._match_r_paren()
        if self._match_text_seq("REPEATABLE"):
            made.set("seed", self._parse_wrapped(self._parse_number))
        elif self._curr.text.upper() in ("(", "SEED"):
            self.raise_error("expected REPEATABLE (...), or AS and a name")
        return made

    def _named(self, parse: Callable[[], Any]) -> Any:
        """In Spark, `SELECT a AS, b` calls a column AS."""
        begins = self._index
        made = parse()
        if self._index == begins + 1 and self._prev.token_type is TokenType.ALIAS:
            self.raise_error("AS has no name after it; write `AS` if that is the name")
        return made

    # -- booleanExpression -----------------------------------------------------------------------------------------

    def _parse_equality(self, *_: Any, **_options: Any) -> Any:
        """What AND and OR connect."""
        if self._match(TokenType.NOT):
            return self.expression(exp.Not(this=self._parse_equality()))
        return self._predicated(self._parse_bitwise())

    def _predicated(self, this: Any) -> Any:
        """At most one: `a IN (1) IS NULL` is an error."""
        if this is None:
            return None
        if self._match(TokenType.IS):
            return self._is(operand(this))
        negated = self._match(TokenType.NOT)
        if not self._match_set(_PREDICATES):
            if negated:
                self._retreat(self._index - 1)
            return this
        made = self.RANGE_PARSERS[self._prev.token_type](self, operand(this))
        inner = made.this if isinstance(made, exp.Escape) else made
        for part in ("expression", "low", "high"):
            if inner is not None and inner.args.get(part) is not None:
                inner.set(part, operand(inner.args[part]))
        if isinstance(inner, exp.Like | exp.ILike):
            return self._negate_range(made) if negated else made
        return exp.Not(this=made) if negated else made

    def _is(self, this: Any) -> Any:
        negated = self._match(TokenType.NOT)
        if self._match_text_seq("DISTINCT", "FROM"):
            kind = exp.NullSafeEQ if negated else exp.NullSafeNEQ
            return self.expression(kind(this=this, expression=operand(self._parse_bitwise())))
        if self._match(TokenType.NULL):
            what: exp.Expr = exp.Null()
        elif self._match_set((TokenType.TRUE, TokenType.FALSE)):
            what = exp.Boolean(this=self._prev.token_type is TokenType.TRUE)
        elif self._match_text_seq("UNKNOWN"):
            what = exp.var("UNKNOWN")
        else:
            self.raise_error("expected NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM after IS")
        made = self.expression(exp.Is(this=this, expression=what))
        return exp.Not(this=made) if negated else made

    # -- valueExpression -------------------------------------------------------------------------------------------

    def _parse_bitwise(self) -> Any:
        return self._value(_COMPARISON)

    def _parse_comparison(self, this: Any = None) -> Any:
        return self._value(_COMPARISON) if this is None else this

    def _parse_range(self, this: Any = None, *_: Any, **_options: Any) -> Any:
        return self._value(_COMPARISON) if this is None else this

    def _parse_term(self, *_: Any, **_options: Any) -> Any:
        return self._value(_SUM)

    def _parse_factor(self, *_: Any, **_options: Any) -> Any:
        return self._value(_PRODUCT)

    def _value(self, lowest: int) -> Any:
        """Everything that binds at this level of the ladder or tighter; equals are read from the left."""
        this = self._parse_unary()
        while this is not None:
            index = self._index
            if (shift := self._shift()) is not None:
                level = _SHIFT
            else:
                level, kind = _OPERATORS.get(self._curr.token_type, (-1, exp.Expr))
            if level < lowest:
                self._retreat(index)
                break
            if shift is None:
                self._advance()
            right = self._value(level + 1)
            if right is None:
                if self._prev.token_type is not TokenType.DIV:
                    self.raise_error("an operand is missing here")
                self._retreat(index)  # a name: SELECT a div
                break
            this = self._shifted(shift, this, right) if shift else self._binary(kind, level, this, right)
        return this

    def _binary(self, kind: type[exp.Expr], level: int, left: Any, right: Any) -> exp.Expr:
        made = self.expression(
            kind(
                this=left if _LEVELS.get(type(left)) == level > _COMPARISON else operand(left),
                expression=operand(right),
            )
        )
        if isinstance(made, exp.Div):
            made.set("typed", self.dialect.TYPED_DIVISION)
            made.set("safe", self.dialect.SAFE_DIVISION)
        if isinstance(made, exp.DPipe):
            made.set("safe", not self.dialect.STRICT_STRING_CONCAT)
        return made

    def _shift(self) -> str | None:
        """The sign, if one comes next; sqlglot has a token for each of its characters."""
        first = self._curr.token_type
        if first not in (TokenType.LT, TokenType.GT):
            return None
        signs = [self._curr]
        while (then := self._tokens[self._index + len(signs) : self._index + len(signs) + 1]) and (
            then[0].token_type is first and then[0].start == signs[-1].end + 1
        ):
            signs += then
        sign = "".join(token.text for token in signs)
        if sign not in _SHIFTS:
            return None
        self._advance(len(signs))
        return sign

    def _shifted(self, sign: str, left: Any, right: Any) -> exp.Expr:
        if sign == "<<":
            return self.expression(exp.BitwiseLeftShift(this=operand(left), expression=operand(right)))
        if sign == ">>":
            return self.expression(exp.BitwiseRightShift(this=operand(left), expression=operand(right)))
        return exp.Anonymous(this=_SHIFTS[sign], expressions=[left, right])

    def _parse_unary(self) -> Any:
        if self._match(TokenType.DASH):
            if self._curr.token_type is TokenType.NUMBER:
                return _negative(self._parse_type())
            return self.expression(exp.Neg(this=_signed(exp.Neg, self._parse_unary())))
        if self._match(TokenType.PLUS):
            # Of text it makes a number, so it cannot be left out; the function of that name is the same to Spark.
            this = self._parse_unary()
            return None if this is None else exp.Anonymous(this="POSITIVE", expressions=[this])
        if self._match(TokenType.TILDE):
            return self.expression(exp.BitwiseNot(this=_signed(exp.BitwiseNot, self._parse_unary())))
        return self._parse_type()

    # -- primaryExpression -----------------------------------------------------------------------------------------

    def _parse_type(self, *args: Any, **kwargs: Any) -> Any:
        this = self._typed_text()
        this = self._parse_column_ops(this) if this is not None else super()._parse_type(*args, **kwargs)
        while this is not None and self._match(TokenType.COLLATE):
            name = self._parse_id_var(any_token=True)
            if self._curr.token_type is TokenType.DASH:
                # Spark takes `c - d` after COLLATE for a name with a hyphen, and refuses it.
                self.raise_error("a minus follows the name of a collation; write parentheses")
            this = self._parse_column_ops(self.expression(exp.Collate(this=operand(this), expression=name)))
        return this

    def _typed_text(self) -> exp.Expr | None:
        """DATE '2024-01-01' is one value, to which more may be done; of other types there is none."""
        if self._next.token_type is not TokenType.STRING:
            return None
        if (kind := _TYPED_TEXTS.get(self._curr.text.upper())) is None or self._curr.token_type is TokenType.IDENTIFIER:
            return None
        self._advance(2)
        return exp.Cast(this=exp.Literal.string(self._prev.text), to=exp.DataType(this=kind))

    def _parse_primary(self) -> exp.Expr | None:
        """'a' 'b' is one text, which sqlglot makes a call of."""
        found: exp.Expr | None = super()._parse_primary()
        if type(found) is exp.Concat:
            return exp.Literal.string("".join(part.name for part in found.expressions))
        return found

    def _parse_interval(self, *_: Any, **_options: Any) -> Any:
        """INTERVAL 1 DAY 2 HOURS becomes a sum; without parentheses `t - INTERVAL 1 DAY 2 HOURS` would mean another."""
        index = self._index
        if not self._match(TokenType.INTERVAL):
            return None
        parts = [] if (first := self._interval_part(is_first=True)) is None else [first]
        while parts and parts[-1].args.get("unit") is not None and (part := self._interval_part()) is not None:
            parts.append(part)
        if not parts:  # a column may be called interval
            if self._next.text.upper() in self.dialect.VALID_INTERVAL_UNITS and self._curr.token_type is TokenType.VAR:
                self.raise_error("an interval must be of a number; multiply INTERVAL 1 DAY")
            self._retreat(index)
            return None
        return (
            parts[0] if len(parts) == 1 else exp.Paren(this=reduce(lambda a, b: exp.Add(this=a, expression=b), parts))
        )

    def _interval_part(self, *, is_first: bool = False) -> exp.Expr | None:
        """A number and its unit, which only a text that comes first may have inside."""
        index = self._index
        sign = "-" if self._match(TokenType.DASH) else ""
        is_signed = bool(sign or self._match(TokenType.PLUS))
        if not self._match_set((TokenType.NUMBER, TokenType.STRING)):
            self._retreat(index)
            return None
        if self._prev.token_type is TokenType.NUMBER and not _PLAIN_NUMBER.fullmatch(self._prev.text):
            self._retreat(index)  # 7D is a number with a suffix, and has no unit
            return None
        is_alone = is_first and not is_signed and self._prev.token_type is TokenType.STRING
        made = self._parse_interval_span(exp.Literal.string(sign + self._prev.text), parse_function_unit=False)
        if made.args.get("unit") is None and not is_alone:
            self._retreat(index)
            return None
        return made


def _signed(kind: type[exp.Expr], this: Any) -> Any:
    return this if type(this) is kind else operand(this)


def _negative(this: Any) -> Any:
    """Spark takes -1 for one number, whatever is done to it next: `-1::INT` is `(-1)::INT`."""
    number = this
    while isinstance(number, exp.Expr) and not isinstance(number, exp.Literal):
        number = number.this
    if number is this:
        return exp.Neg(this=this)
    number.replace(exp.Neg(this=number.copy()))
    return this


class DefinitionTokenizer(Spark.Tokenizer):
    COMMANDS: ClassVar[set[TokenType]] = set()  # sqlglot takes what follows SHOW or EXPLAIN for one text
    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        word: token
        for word, token in Spark.Tokenizer.KEYWORDS.items()
        if word in _SIGNS or word.replace("_", "").replace(" ", "").isalnum()
    }
    NUMERIC_LITERALS: ClassVar[dict[str, str]] = {}  # 1L is a number and no cast: it has as many digits as are written


class DefinitionGenerator(SparkGenerator):
    """Writes each part where it was read. What sqlglot writes for Hive has every WITH at the top."""

    EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[exp.Expr]]] = set()
    TABLESAMPLE_SEED_KEYWORD = "REPEATABLE"


class DefinitionDialect(Spark):
    SUPPORTS_ORDER_BY_ALL = False  # a column of that name goes first, as in Spark
    Tokenizer = DefinitionTokenizer
    Parser = DefinitionParser
    Generator = DefinitionGenerator


_AFTER_A_NAME = frozenset({
    TokenType.COMMA, TokenType.R_PAREN, TokenType.DOT, TokenType.DCOLON, TokenType.L_BRACKET, TokenType.EQ,
    TokenType.NEQ, TokenType.NULLSAFE_EQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE, TokenType.PIPE,
    TokenType.CARET, TokenType.AMP, TokenType.DPIPE, TokenType.SLASH, TokenType.MOD,
})  # fmt: skip
"""What an expression may not begin with: a word before it is one whole expression, or the first operand."""
_AFTER_A_STAR = frozenset({TokenType.COMMA, TokenType.R_PAREN, TokenType.FROM, TokenType.SEMICOLON})
_NAMES_TOO = frozenset({
    TokenType.FROM, TokenType.ALIAS, TokenType.IS, TokenType.IN, TokenType.AND, TokenType.OR, TokenType.BETWEEN,
    TokenType.LIKE, TokenType.ILIKE, TokenType.RLIKE, TokenType.DIV, TokenType.COLLATE, TokenType.WHERE,
    TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.LIMIT, TokenType.UNION, TokenType.EXCEPT,
    TokenType.INTERSECT,
})  # fmt: skip
"""Words that Spark may take for a column after ALL: `SELECT all FROM t` is a column FROM, named t, of no table."""
_OF_SETS = frozenset({TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT, TokenType.LIMIT})
_COMPARED = frozenset({*_PREDICATES, *(token for token, (level, _) in _OPERATORS.items() if level == _COMPARISON)})


def with_names_called_all(tokens: list[Token]) -> list[Token]:
    """ALL as Spark reads it: a word of SELECT, of a call, of a set operation or of a comparison, or else a name."""
    for token, before, then, later in zip(
        tokens, [None, *tokens], [*tokens[1:], None], [*tokens[2:], None, None], strict=False
    ):
        if token.token_type is TokenType.ALL and not _is_quantifier(token, before, then, later):
            token.token_type = TokenType.VAR
    return tokens


def _is_quantifier(token: Token, before: Token | None, then: Token | None, later: Token | None) -> bool:
    place = before.token_type if before is not None else None
    follows = then.token_type if then is not None else None
    if place in _OF_SETS:
        return True
    if place in _COMPARED:
        return follows is TokenType.L_PAREN
    if place is TokenType.GROUP_BY or place not in (TokenType.SELECT, TokenType.HINT, TokenType.L_PAREN):
        return False
    if follows is None or follows in _AFTER_A_NAME:
        return False
    is_star = follows is TokenType.STAR and (later is None or later.token_type in _AFTER_A_STAR)
    if follows in _NAMES_TOO or (follows is TokenType.STAR and not is_star):
        raise ParseError(f"{token.text} is a word of SQL here; write `{token.text}` for the column")
    return True


_NUMBER_AND_SIGN = re.compile(r"((?:\d+\.?\d*|\.\d+)E\d+)([+-])(.*)", re.IGNORECASE | re.ASCII | re.DOTALL)


def with_signs_after_exponents(tokens: list[Token], tokenize: Callable[[str], list[Token]]) -> list[Token]:
    """`1e3+1` is a sum. sqlglot takes a sign behind the digits of an exponent for a part of the number."""
    found: list[Token] = []
    for token in tokens:
        match = None
        if token.token_type in (TokenType.NUMBER, TokenType.VAR):
            match = _NUMBER_AND_SIGN.fullmatch(token.text)
        if match is None:
            found.append(token)
            continue
        number, sign, rest = match.groups()
        sign_at, rest_at = token.start + len(number), token.start + len(number) + 1
        kind = TokenType.PLUS if sign == "+" else TokenType.DASH
        found.append(Token(TokenType.NUMBER, number, token.line, token.col, token.start, sign_at - 1))
        found.append(Token(kind, sign, token.line, token.col, sign_at, sign_at))
        for part in with_signs_after_exponents(tokenize(rest), tokenize):
            part.start, part.end = part.start + rest_at, part.end + rest_at
            found.append(part)
    return found


def with_suffixed_numbers(tokens: list[Token]) -> list[Token]:
    """1L, 1.5BD and their like, which the tokenizer takes for names."""
    for token in tokens:
        if token.token_type is TokenType.VAR and _SUFFIXED_NUMBER.fullmatch(token.text):
            token.token_type = TokenType.NUMBER
        elif token.token_type is TokenType.VAR and token.text[:1].isdigit() and "." in token.text:
            raise ParseError(f"{token.text!r} is neither a number nor a name")
    return tokens
