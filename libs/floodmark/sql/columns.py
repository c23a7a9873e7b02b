"""Which column of the table a name in a definition means, as Spark decides it: case does not matter."""

import difflib
from collections.abc import Mapping

from sqlglot import exp

from floodmark.sql.clock import check_clock_words
from floodmark.sql.functions import WITHOUT_PARENTHESES
from floodmark.sql.lambdas import rename_parameters
from floodmark.sql.parsing import render
from floodmark.sql.rules import Rule, refused, shown
from floodmark.sql.struct_names import check_field_names

_ARROW_TIMES = ("timestamp", "date")


class Columns:
    """The columns of one table, and which of them a definition reads. With no columns known, every name is one."""

    def __init__(self, known: Mapping[str, str], *, qualifier: str, time_column: str) -> None:
        self._open = not known
        self._qualifier = qualifier.lower()
        self._spellings: dict[str, list[str]] = {}
        for name in [*known, time_column]:
            spellings = self._spellings.setdefault(name.lower(), [])
            if name not in spellings:
                spellings.append(name)
        self._times = frozenset({n for n, kind in known.items() if kind.startswith(_ARROW_TIMES)} | {time_column})
        self.read = {time_column}

    def resolved(self, root: exp.Expr) -> exp.Expr:
        """The same expression over the table's own names, without qualifiers, and with parameters named anew."""
        tree = root.transform(lambda node: self._resolve(node) if isinstance(node, exp.Column) else node)
        check_field_names(tree)
        rename_parameters(tree)
        check_clock_words(tree, times=self._times)
        return tree

    def has(self, name: str) -> bool:
        return name.lower() in self._spellings

    def _resolve(self, column: exp.Column) -> exp.Expr:
        parts = list(column.parts)
        if len(parts) > 1 and parts[0].name.lower() == self._qualifier and (self._open or self.has(parts[1].name)):
            parts = parts[1:]
        name = self._spelled(parts[0], column)
        self.read.add(name)
        found: exp.Expr = exp.Column(this=exp.to_identifier(name, quoted=True))
        for field in parts[1:]:
            found = exp.Dot(this=found, expression=exp.to_identifier(field.name, quoted=True))
        return found

    def _spelled(self, name: exp.Expr, column: exp.Column) -> str:
        text = name.name
        spellings = self._spellings.get(text.lower(), [])
        if len(spellings) > 1:
            raise refused(
                Rule.UNKNOWN_COLUMN,
                f"{text} may be any of {', '.join(spellings)}, which differ only in upper and lower case",
            )
        if spellings:
            return spellings[0]
        if text.lower() in WITHOUT_PARENTHESES and not (self._open and name.args.get("quoted")):
            raise refused(
                Rule.NONDETERMINISTIC,
                f"{text} is no column, and its value depends on when or where a bucket is built; "
                "store it in a column instead",
            )
        if not self._open:
            near = difflib.get_close_matches(text.lower(), self._spellings, n=3)
            names = ", ".join(self._spellings[key][0] for key in near or sorted(self._spellings)[:10])
            raise refused(
                Rule.UNKNOWN_COLUMN,
                f"the table has no column {shown(render(column))}; {'did you mean' if near else 'there are'} {names}",
            )
        self._spellings[text.lower()] = [text]
        return text
