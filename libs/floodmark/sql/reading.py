"""From the text of a request to the one statement it is.

The head of a statement is read word by word; a SELECT inside it is handed on as it was written, to whoever plans or
analyses it as a syntax tree. Nothing is looked up and nothing is done here.
"""

from collections.abc import Callable, Mapping

from floodmark.core.errors import InvalidInput
from floodmark.sql.cursor import Cursor
from floodmark.sql.parsing import bounded_depth, parse_select
from floodmark.sql.rules import Rule, refused, shown
from floodmark.sql.statements import (
    AlterTable,
    CreateTable,
    CreateView,
    Describe,
    DropTable,
    DropView,
    Explain,
    PauseView,
    RefreshView,
    ResumeView,
    Select,
    SetOption,
    ShowCreate,
    ShowRefusedFiles,
    ShowTables,
    ShowViews,
    Statement,
    StatementRule,
    WhyStale,
)

__all__ = ["read_statement", "source_of"]


def read_statement(text: str) -> Statement:
    """The statement that the text is, or a refusal that says what to write."""
    with bounded_depth():
        cursor = Cursor(text)
        for words, read in _STATEMENTS.items():
            if cursor.take(*words):
                statement = read(cursor)
                cursor.end()
                return statement
    known = ", ".join(" ".join(words) for words in _STATEMENTS if words != ("(",))
    raise InvalidInput(
        StatementRule.UNKNOWN_STATEMENT, f"{shown(text)!r} is not a statement known here; there are {known}"
    )


def source_of(select: str) -> str:
    """The name after FROM: the one table or view that a query reads."""
    with bounded_depth():
        source = parse_select(select).args.get("from_")
    if source is None or not source.name:
        raise refused(Rule.WRONG_TABLE, "there is no FROM with the name of a table; write FROM and its name")
    return str(source.name).lower()


# -- tables ------------------------------------------------------------------------------------------------------------


def _create_table(cursor: Cursor) -> Statement:
    dry_run = cursor.take_last("DRY", "RUN")
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name("table")
    columns = tuple(_column(item) for item in cursor.items()) if _opens(cursor) else ()
    location: str | None = None
    properties: dict[str, str] = {}
    while not cursor.done:
        if cursor.take("USING"):
            _check_format(cursor.name("format"))
        elif cursor.take("LOCATION"):
            location = cursor.text("the location")
        else:
            cursor.expect("TBLPROPERTIES")
            properties = cursor.pairs(Cursor.value)
    return CreateTable(name, location, columns, properties, if_not_exists, dry_run)


def _opens(cursor: Cursor) -> bool:
    """Whether a parenthesis comes next; it is not read."""
    if not cursor.take("("):
        return False
    cursor.step_back()
    return True


def _check_format(kind: str) -> None:
    if kind != "parquet":
        raise InvalidInput(StatementRule.FORMAT, f"a table cannot be USING {kind}; write USING parquet")


def _column(item: str) -> tuple[str, str]:
    """`name type [NOT NULL] [COMMENT '...']`: whether it may be null makes no difference to what is read."""
    cursor = Cursor(item)
    name = cursor.column()
    kind = _type(cursor)
    cursor.take("NOT", "NULL")
    if cursor.take("COMMENT"):
        cursor.text("the comment")
    cursor.end()
    return name, kind


_ARROW_TYPES: Mapping[str, str] = {
    "BOOLEAN": "bool",
    "TINYINT": "int8",
    "BYTE": "int8",
    "SMALLINT": "int16",
    "SHORT": "int16",
    "INT": "int32",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "LONG": "int64",
    "FLOAT": "float",
    "REAL": "float",
    "DOUBLE": "double",
    "STRING": "string",
    "BINARY": "binary",
    "DATE": "date32[day]",
    "TIMESTAMP": "timestamp[us, tz=UTC]",
    "TIMESTAMP_LTZ": "timestamp[us, tz=UTC]",
    "TIMESTAMP_NTZ": "timestamp[us]",
}


def _type(cursor: Cursor) -> str:
    """A type as files have it."""
    written = cursor.name("type").upper()
    if written in ("DECIMAL", "NUMERIC", "DEC"):
        precision, scale = _digits(cursor)
        return f"decimal128({precision}, {scale})"
    if written not in _ARROW_TYPES:
        known = ", ".join([*_ARROW_TYPES, "DECIMAL(p, s)"])
        raise InvalidInput(StatementRule.COLUMN_TYPE, f"type {shown(written)} is not known; there are {known}")
    return _ARROW_TYPES[written]


def _digits(cursor: Cursor) -> tuple[int, int]:
    if not _opens(cursor):
        return 10, 0
    numbers = [item.strip() for item in cursor.items()]
    if len(numbers) > 2 or not all(n.isascii() and n.isdecimal() and len(n) <= 2 for n in numbers):
        raise InvalidInput(StatementRule.COLUMN_TYPE, "a decimal has at most two numbers; write DECIMAL(10, 2)")
    precision, scale = int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else 0
    if not 1 <= precision <= 38 or scale > precision:
        raise InvalidInput(
            StatementRule.COLUMN_TYPE, f"DECIMAL({precision}, {scale}) must have 1 to 38 digits, the scale among them"
        )
    return precision, scale


def _alter_table(cursor: Cursor) -> Statement:
    name = cursor.name("table")
    if cursor.take("SET", "TBLPROPERTIES"):
        return AlterTable(name, cursor.pairs(Cursor.value))
    if cursor.take("UNSET", "TBLPROPERTIES"):
        return AlterTable(name, cursor.pairs(lambda _: None))
    raise InvalidInput(
        StatementRule.ALTER_TABLE,
        f"of table {name!r} only properties can be altered: write ALTER TABLE {name} SET TBLPROPERTIES (...); "
        "for other columns or another location create another table",
    )


def _drop_table(cursor: Cursor) -> Statement:
    if_exists = cursor.take("IF", "EXISTS")
    return DropTable(cursor.name("table"), if_exists)


# -- views -------------------------------------------------------------------------------------------------------------


def _create_view(cursor: Cursor, *, or_replace: bool = False) -> Statement:
    dry_run = cursor.take_last("DRY", "RUN")
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    if if_not_exists and or_replace:
        raise cursor.refusal("OR REPLACE and IF NOT EXISTS exclude each other; write one of them")
    name = cursor.name("view")
    location: str | None = None
    properties: dict[str, str] = {}
    while not cursor.take("AS"):
        if cursor.take("LOCATION"):
            location = cursor.text("the location")
        elif cursor.take("TBLPROPERTIES"):
            properties = cursor.pairs(Cursor.value)
        else:
            raise cursor.refusal("write TBLPROPERTIES ('bucket' = '1h') and AS SELECT ... here")
    return CreateView(name, cursor.rest(), location, properties, or_replace, if_not_exists, dry_run)


def _refresh(cursor: Cursor) -> Statement:
    name = cursor.name("view")
    if cursor.take("BUCKET"):
        return RefreshView(name, bucket=cursor.time("the bucket"))
    if cursor.take("FROM"):
        start = cursor.time("the start")
        cursor.expect("TO")
        return RefreshView(name, start, cursor.time("the end"))
    return RefreshView(name)


def _drop_view(cursor: Cursor) -> Statement:
    if_exists = cursor.take("IF", "EXISTS")
    return DropView(cursor.name("view"), if_exists)


# -- looking -----------------------------------------------------------------------------------------------------------


def _describe(cursor: Cursor) -> Statement:
    if cursor.take("TABLE"):
        return Describe(cursor.name("table"), "table")
    if cursor.take("MATERIALIZED", "VIEW"):
        return Describe(cursor.name("view"), "view")
    return Describe(cursor.name("table or view"))


def _why_stale(cursor: Cursor) -> Statement:
    view = cursor.name("view")
    cursor.take("BUCKET")
    return WhyStale(view, None if cursor.done else cursor.time("the bucket"))


def _set(cursor: Cursor) -> Statement:
    name = [cursor.name("setting")]
    while cursor.take("."):
        name.append(cursor.name("setting"))
    cursor.expect("=")
    return SetOption(".".join(name), cursor.rest().strip("'\""))


def _select(cursor: Cursor) -> Statement:
    cursor.step_back()
    return Select(cursor.rest())


def _explain(cursor: Cursor) -> Statement:
    return Explain(cursor.rest())


_STATEMENTS: Mapping[tuple[str, ...], Callable[[Cursor], Statement]] = {
    ("SELECT",): _select,
    ("WITH",): _select,
    ("(",): _select,
    ("EXPLAIN",): _explain,
    ("CREATE", "TABLE"): _create_table,
    ("ALTER", "TABLE"): _alter_table,
    ("DROP", "TABLE"): _drop_table,
    ("CREATE", "MATERIALIZED", "VIEW"): _create_view,
    ("CREATE", "OR", "REPLACE", "MATERIALIZED", "VIEW"): lambda cursor: _create_view(cursor, or_replace=True),
    ("REFRESH", "MATERIALIZED", "VIEW"): _refresh,
    ("PAUSE", "MATERIALIZED", "VIEW"): lambda cursor: PauseView(cursor.name("view")),
    ("RESUME", "MATERIALIZED", "VIEW"): lambda cursor: ResumeView(cursor.name("view")),
    ("DROP", "MATERIALIZED", "VIEW"): _drop_view,
    ("SHOW", "TABLES"): lambda _: ShowTables(),
    ("SHOW", "REFUSED", "FILES"): lambda cursor: ShowRefusedFiles(cursor.name("table")),
    ("SHOW", "MATERIALIZED", "VIEWS"): lambda _: ShowViews(),
    ("SHOW", "CREATE", "TABLE"): lambda cursor: ShowCreate("table", cursor.name("table")),
    ("SHOW", "CREATE", "MATERIALIZED", "VIEW"): lambda cursor: ShowCreate("view", cursor.name("view")),
    ("DESCRIBE",): _describe,
    ("DESC",): _describe,
    ("WHY", "STALE"): _why_stale,
    ("SET",): _set,
}
