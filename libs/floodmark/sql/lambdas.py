"""Parameters of lambdas: which name in a body is one, and names for them that hide no column.

    transform(tags, n -> concat(n, trips.n))      the first n is the parameter, the second one the column

In a tree the two can be told apart: a parameter is a marked identifier, a column is a column. In text they cannot, once
the column has lost its qualifier or was replaced by a view's. So before a tree becomes text, each parameter gets a name
that no column in its body has.
"""

from collections.abc import Iterator

from sqlglot import exp

from floodmark.sql.names import Names
from floodmark.sql.rules import Rule, refused, shown

_MARK = "parameter"


def mark_parameters(root: exp.Expr) -> None:
    """In place: what Spark takes for a parameter, which goes before any column. Case does not matter."""
    for function in root.find_all(exp.Lambda):
        names = {parameter.name.lower() for parameter in function.expressions}
        if len(names) < len(function.expressions):
            told = ", ".join(parameter.name for parameter in function.expressions)
            raise refused(Rule.UNSUPPORTED_SYNTAX, f"({shown(told)}) has one parameter twice; rename one of them")
        for column in list(function.this.find_all(exp.Column)):
            if column.parts[0].name.lower() in names:
                column.replace(_as_parameter(column))


def rename_parameters(root: exp.Expr) -> exp.Expr:
    """In place, from the innermost lambda outwards: the names of a lambda follow from itself alone.

    So two that mean the same have one text, and none has a parameter that hides a column or another parameter.
    """
    functions = list(root.find_all(exp.Lambda))
    declarations = [(use, _declaration(use, root)) for use in _uses(root)] if functions else []
    for function in reversed(functions):
        names = Names(_names_in(function.this))
        for number, parameter in enumerate(function.expressions):
            _rename(parameter, names.of(f"x{number}"))
    for use, declaration in declarations:
        if declaration is not None:
            _rename(use, declaration.name)
    return root


def is_open(tree: exp.Expr) -> bool:
    """Whether it has a parameter of a lambda around it: then it has no value of its own."""
    return any(_declaration(use, tree) is None for use in _uses(tree))


def _as_parameter(column: exp.Column) -> exp.Expr:
    first, *fields = column.parts
    found: exp.Expr = exp.to_identifier(first.name, quoted=bool(first.args.get("quoted")))
    found.meta[_MARK] = True
    for field in fields:
        found = exp.Dot(this=found, expression=field.copy())
    return found


def _uses(tree: exp.Expr) -> Iterator[exp.Identifier]:
    return (node for node in tree.find_all(exp.Identifier) if node.meta.get(_MARK))


def _declaration(use: exp.Identifier, root: exp.Expr) -> exp.Identifier | None:
    """The parameter it is: of the innermost lambda around it that has one of its name, no further out than the root."""
    node: exp.Expr | None = use
    while node is not None:
        if isinstance(node, exp.Lambda):
            for parameter in node.expressions:
                if parameter.name.lower() == use.name.lower():
                    assert isinstance(parameter, exp.Identifier), f"{parameter} is no name"
                    return parameter
        node = None if node is root else node.parent
    return None


def _rename(name: exp.Expr, new: str) -> None:
    name.set("this", new)
    name.set("quoted", value=True)


def _names_in(body: exp.Expr) -> Iterator[str]:
    """Of its columns, and of the parameters of lambdas inside."""
    for column in body.find_all(exp.Column):
        yield column.parts[0].name
    for function in body.find_all(exp.Lambda):
        yield from (parameter.name for parameter in function.expressions)
