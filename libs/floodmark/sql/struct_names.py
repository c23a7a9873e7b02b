"""Names of a struct's fields, written out before anything is renamed: Spark calls a field after the column it sees.

    struct(zone, count(*), sum(i) AS x)      named_struct('zone', zone, 'col2', count(*), 'x', sum(i))
    (st.X, i + 1)                            named_struct('X', st.X, 'col2', i + 1)

In a tree, a column is replaced by a view's, by what an output stands for, by a parameter of another name. Whoever looks
at the field's name, as `to_json` does, would see which. Once the names stand there as text, only values are replaced.
"""

from sqlglot import exp

from floodmark.sql.rules import Rule, refused, shown

_STRUCT = "struct"
_NAMES_FIELDS = frozenset({_STRUCT, "arrays_zip"})
"""Functions that call fields after their arguments. A test holds this against Spark's own functions."""
_LISTS = (exp.Values, exp.GroupingSets, exp.Cube, exp.Rollup, exp.Any, exp.All)
"""What has values in parentheses that are no struct."""
_NO_VALUES = (exp.Star, exp.Kwarg, exp.Lambda, exp.Var)


def name_fields(tree: exp.Expr) -> None:
    """In place: each struct(...), and each tuple that is a value, with the names that Spark would give.

    It comes before parameters are marked and names are resolved, for a field is called what the user wrote.
    """
    for node in list(tree.find_all(exp.Anonymous, exp.Tuple)):
        if _makes_struct(node) and (named := _named(node.expressions)) is not None:
            node.replace(exp.Anonymous(this="NAMED_STRUCT", expressions=named))


def check_field_names(tree: exp.Expr) -> None:
    """Refuse what still calls fields after its arguments: over other columns, they would be called otherwise."""
    for node in tree.find_all(exp.Anonymous, exp.Tuple):
        if _makes_struct(node) or (isinstance(node, exp.Anonymous) and node.name.lower() in _NAMES_FIELDS):
            raise refused(
                Rule.UNSUPPORTED_SYNTAX,
                f"{shown(node.sql('spark', comments=False))} has fields that are called after its arguments; "
                "write named_struct('name', value, ...) for a row, and transform(...) for the elements of an array",
            )


def _makes_struct(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower() == _STRUCT
    return isinstance(node, exp.Tuple) and _is_value(node)


def _is_value(row: exp.Tuple) -> bool:
    """Not one of VALUES, nor what is compared with the columns of a subquery, which Spark takes apart."""
    node: exp.Expr = row
    while isinstance(node.parent, exp.Paren):
        node = node.parent
    above = node.parent
    if isinstance(above, exp.In) and node is above.this and above.args.get("query") is not None:
        return False
    return bool(row.expressions) and not isinstance(above, _LISTS)


def _named(values: list[exp.Expr]) -> list[exp.Expr] | None:
    """Each value after its name; None if one of them may have another name, or be several values."""
    named: list[exp.Expr] = []
    for number, value in enumerate(values, 1):
        inner = value.this if isinstance(value, exp.Alias) else value
        if value.is_star or isinstance(inner, _NO_VALUES):
            return None
        named += [exp.Literal.string(_name(value, number)), inner]
    return named


def _name(value: exp.Expr, number: int) -> str:
    """Of a column, a field or a parameter, the last part as it is written: Spark's `CreateStruct`."""
    if isinstance(value, exp.Alias):
        return str(value.alias)
    value = value.unnest()
    if isinstance(value, exp.Column):
        return str(value.name)
    if isinstance(value, exp.Dot):
        return str(value.expression.name)
    if isinstance(value, exp.Bracket) and len(value.expressions) == 1 and value.expressions[0].is_string:
        return str(value.expressions[0].name)
    return f"col{number}"
