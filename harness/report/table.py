"""What a table is, wherever it is shown: on the page, in Markdown, in the terminal."""

from dataclasses import dataclass, field

DASH = "–"


@dataclass
class Table:
    """A cell is text; what stands behind a line break is small print (an interval, a certificate).

    A figure that does not exist is a dash, never 0.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    marked: set[int] = field(default_factory=set)  # rows that stand out
