"""The drawing of a tree, read back from its SVG by a parser of its own."""

import re
import xml.etree.ElementTree as ET
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records import TreeTrace
from harness.report.trees import BOX_H, BOX_W, tree_svg

SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def traces(draw: st.DrawFn) -> TreeTrace:
    """Any tree of up to 30 nodes with a path that follows it, and any text."""
    count = draw(st.integers(1, 30))
    parents = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, count)]
    path = [0]
    while True:
        below = [i for i in range(count) if parents[i] == path[-1]]
        if not below or draw(st.booleans()):
            break
        path.append(draw(st.sampled_from(below)))
    text = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=14)
    return TreeTrace(
        tokens=list(range(count)),
        texts=[draw(text) for _ in range(count)],
        parents=parents,
        scores=[0.0] * count,
        probabilities=[draw(st.floats(0, 1)) for _ in range(count)],
        path=path,
        bonus=7,
        bonus_text=draw(text),
    )


def boxes(drawing: ET.Element) -> list[tuple[str, float, float, str]]:
    """(kind, x, y, title) of every node."""
    found = []
    for group in drawing.iter("{http://www.w3.org/2000/svg}g"):
        rect = group.find(f"{SVG}rect")
        kind = group.get("class", "").removeprefix("node").strip()
        found.append((kind, float(rect.get("x")), float(rect.get("y")), group.find(f"{SVG}title").text))
    return found


def parse(tree: TreeTrace) -> ET.Element:
    return ET.fromstring(tree_svg(tree).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


@settings(max_examples=60, deadline=None)
@given(traces())
def test_every_node_is_drawn_apart_and_the_path_is_marked(tree: TreeTrace) -> None:
    drawing = parse(tree)
    found = boxes(drawing)
    kinds = Counter(kind for kind, *_ in found)
    assert kinds["root"] == kinds["bonus"] == 1
    assert kinds["path"] == len(tree.path) - 1
    assert len(found) == len(tree.tokens) + 1
    width, height = (float(drawing.get(name)) for name in ("width", "height"))
    for _, x, y, _ in found:
        assert x >= 0 <= y
        assert x + BOX_W <= width
        assert y + BOX_H <= height
    for i, (_, x, y, _) in enumerate(found):
        for _, other_x, other_y, _ in found[:i]:
            assert abs(x - other_x) >= BOX_W or abs(y - other_y) >= BOX_H
    edges = list(drawing.iter(f"{SVG}path"))
    assert len(edges) == len(tree.tokens)  # one into every draft node, and the bonus token's
    assert sum("path" in edge.get("class").split() for edge in edges) == len(tree.path) - 1
    by_gap: dict[float, list[tuple[float, float]]] = {}
    for edge in edges:
        numbers = [float(n) for n in re.findall(r"[\d.]+", edge.get("d"))]
        by_gap.setdefault(numbers[0], []).append((numbers[1], numbers[-1]))
    for ends in by_gap.values():  # within a gap between columns no two edges cross
        starts = [start for _, start in sorted((end, start) for start, end in ends)]
        assert starts == sorted(starts)


def test_a_node_tells_its_numbers_and_its_text_stays_text() -> None:
    tree = TreeTrace(
        tokens=[5, 6, 7],
        texts=["a", "<b>&\n", ""],
        parents=[-1, 0, 1],
        scores=[0.0, -0.5, -1.25],
        probabilities=[1.0, 0.5, 0.25],
        path=[0, 1],
        bonus=8,
        bonus_text=" end",
    )
    found = boxes(parse(tree))
    assert "target p given parent 0.25" in found[2][3]
    assert "target p of the path 0.125" in found[2][3]
    assert "drafter log p of the path -1.25" in found[2][3]
    shown = ["".join(text.itertext()) for text in parse(tree).iter(f"{SVG}text")]
    assert shown == ["a", "", "<b>&⏎", "0.500", "#7", "0.250", "␣end", "bonus"]
