"""A round's draft tree as SVG: depth from left to right, siblings from top to bottom, the accepted path in colour.

Tokens are model output: all text goes through `escape`.
"""

from html import escape

from harness.records import TreeTrace

BOX_W, BOX_H, GAP_X, GAP_Y, MARGIN = 96, 26, 24, 6, 8
SHOWN_CHARS = 8


def tree_svg(tree: TreeTrace) -> str:
    """An <svg> element. A node shows its token and the target's probability given its parent; more is in its title."""
    depths = _depths(tree)
    rows, path = _rows(tree, depths), set(tree.path)
    height = 2 * MARGIN + (max(rows) + 1) * (BOX_H + GAP_Y)
    width = 2 * MARGIN + max(depths) * (BOX_W + GAP_X) + BOX_W
    mass = _path_probabilities(tree)
    edges, nodes = [], []
    for node in range(len(tree.tokens)):
        on_path = node in path
        x, y = _corner(depths[node], rows[node])
        if node:
            above = tree.parents[node]
            stroke = 0.8 + 4.2 * mass[node]
            edges.append(_edge(_corner(depths[above], rows[above]), (x, y), "path" if on_path else "", stroke))
        figures = "" if not node else f"{tree.probabilities[node]:.3f}"
        title = (
            f"token {tree.tokens[node]} {tree.texts[node]!r}\ntarget p given parent {tree.probabilities[node]:.4g}\n"
            f"target p of the path {mass[node]:.4g}\ndrafter log p of the path {tree.scores[node]:.4g}"
        )
        kind = "root" if not node else "path" if on_path else ""
        nodes.append(_box(x, y, kind, _shown(tree.texts[node], tree.tokens[node]), figures, title))
    last = tree.path[-1]
    spot = _corner(depths[-1], rows[-1])
    edges.append(_edge(_corner(depths[last], rows[last]), spot, "bonus", 1.2))
    title = f"bonus token {tree.bonus} {tree.bonus_text!r}, drawn from the target after the path"
    nodes.append(_box(*spot, "bonus", _shown(tree.bonus_text, tree.bonus), "bonus", title))
    return (
        f'<svg class="tree" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="draft tree of {len(tree.tokens) - 1} nodes, {len(tree.path) - 1} accepted">'
        + "".join(edges + nodes)
        + "</svg>"
    )


def _depths(tree: TreeTrace) -> list[int]:
    """Of the nodes, and of the bonus token, which hangs under the end of the path."""
    depths: list[int] = []
    for parent in [*tree.parents, tree.path[-1]]:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


def _rows(tree: TreeTrace, depths: list[int]) -> list[int]:
    """Rows of the nodes, the bonus token's last: as high as the column allows, but not above the parent.

    Nodes are placed depth first, so the columns keep the parents' order and no two edges cross.
    """
    bonus = len(tree.tokens)
    children: list[list[int]] = [[] for _ in range(bonus + 1)]
    for node, parent in enumerate([*tree.parents, tree.path[-1]]):
        if parent >= 0:
            children[parent].append(node)
    rows, free, stack = [0] * (bonus + 1), [0] * (max(depths) + 1), [(0, 0)]
    while stack:
        node, least = stack.pop()
        rows[node] = max(free[depths[node]], least)
        free[depths[node]] = rows[node] + 1
        stack += [(child, rows[node]) for child in reversed(children[node])]
    return rows


def _path_probabilities(tree: TreeTrace) -> list[float]:
    mass: list[float] = []
    for parent, p in zip(tree.parents, tree.probabilities, strict=True):
        mass.append(p if parent < 0 else p * mass[parent])
    return mass


def _corner(depth: int, row: int) -> tuple[int, int]:
    return MARGIN + depth * (BOX_W + GAP_X), MARGIN + row * (BOX_H + GAP_Y)


def _edge(start: tuple[int, int], end: tuple[int, int], kind: str, stroke: float) -> str:
    x0, y0, x1, y1 = start[0] + BOX_W, start[1] + BOX_H / 2, end[0], end[1] + BOX_H / 2
    bend = (x0 + x1) / 2
    line = f"M{x0} {y0:g}C{bend:g} {y0:g} {bend:g} {y1:g} {x1} {y1:g}"
    return f'<path class="edge {kind}" d="{line}" stroke-width="{stroke:.1f}"/>'


def _box(x: int, y: int, kind: str, text: str, figures: str, title: str) -> str:
    middle = y + BOX_H / 2 + 4
    return (
        f'<g class="node {kind}"><title>{escape(title)}</title>'
        f'<rect x="{x}" y="{y}" width="{BOX_W}" height="{BOX_H}" rx="5"/>'
        f'<text x="{x + 6}" y="{middle:g}">{escape(text)}</text>'
        f'<text class="p" x="{x + BOX_W - 5}" y="{middle:g}" text-anchor="end">{escape(figures)}</text></g>'
    )


def _shown(text: str, token: int) -> str:
    """What a person can read in a small box: spaces and newlines as signs, a long token cut, an empty one by its id."""
    shown = "".join(SIGNS.get(c, c if c.isprintable() else "·") for c in text)
    if not shown:
        return f"#{token}"
    return shown if len(shown) <= SHOWN_CHARS else shown[: SHOWN_CHARS - 1] + "…"


SIGNS = {" ": "␣", "\n": "⏎", "\t": "⇥"}
