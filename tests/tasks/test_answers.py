"""Maths extraction: a table of answers as models write them, and properties for any text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.answers import TRUNCATED, braced, extract_maths, last_boxed, strip_reasoning

TABLE = [
    (r"The answer is $\boxed{42}$.", "42", "boxed"),
    (r"\boxed{42}", "42", "boxed"),
    (r"\[ \boxed{\frac{1}{2}} \]", r"\frac{1}{2}", "boxed"),
    (r"First $\boxed{1}$, no: $\boxed{2}$", "2", "boxed"),
    (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", r"\left( 3, \frac{\pi}{2} \right)", "boxed"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}", "boxed"),
    (r"\boxed{ 7 }", "7", "boxed"),
    (r"\boxed 7", "7", "boxed"),
    (r"$\boxed7$", "7", "boxed"),
    (r"\fbox{7}", "7", "boxed"),
    (r"\boxed{\boxed{7}}", "7", "boxed"),
    (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", "boxed"),
    ("\\boxed{\n12\n}", "12", "boxed"),
    (r"So $\boxed{5}$ and then it goes on: $\boxed{6", "5", "boxed"),
    (r"Put it into \boxed{}. The answer is 9.", "9", "phrase"),
    ("Final Answer: 17", "17", "phrase"),
    ("**Final Answer:** 17", "17", "phrase"),
    ("**Final Answer**: $17$", "17", "phrase"),
    ("The final answer is 17.", "17", "phrase"),
    ("The final answer is: 17. I hope it is correct.", "17", "phrase"),
    ("The answer is **17**", "17", "phrase"),
    ("Therefore, the answer is $x = 17$.", "17", "phrase"),
    (r"The answer is \(\frac{3}{4}\).", r"\frac{3}{4}", "phrase"),
    ("Answer: 3/4", "3/4", "phrase"),
    ("Answer: 3.75", "3.75", "phrase"),
    ("The answer to the question is 12, because 3 * 4 = 12.", "12", "phrase"),
    ("The answer is 1. No, wait.\nThe answer is 2.", "2", "phrase"),
    ("Final answer:\n\n17", "17", "phrase"),
    ("Final answer:\n17", "17", "phrase"),
    ("She pays 3 * 4 = 12.\n#### 12", "12", "hashes"),
    ("#### 1,200", "1,200", "hashes"),
    ("We add them.\nThat makes 1,234 apples.", "1,234", "last number"),
    ("So he has 3 + 4 = 7", "7", "last number"),
    ("Hence $a = 3$ and $b = -4$.", "-4", "last formula"),
    (r"Thus \[ x = \frac{1}{2} \]", r"\frac{1}{2}", "last formula"),
    ("The temperature is -5", "-5", "last number"),
    ("<think>maybe 3? \\boxed{3}</think>The answer is 4.", "4", "phrase"),
    ("maybe 3? \\boxed{3}</think>\\boxed{4}", "4", "boxed"),
    ("<think>\n\n</think>\n\n\\boxed{4}", "4", "boxed"),
    ("<think>maybe \\boxed{3}", None, TRUNCATED),
    ("Sure. <think>maybe \\boxed{3}", None, TRUNCATED),
    ("<think>a</think><think>maybe \\boxed{3}", None, TRUNCATED),
    ("<think>maybe \\boxed{3}</think>", None, "no answer"),
    ("I do not know.", None, "no answer"),
    ("", None, "no answer"),
    ("\n \n", None, "no answer"),
    ("\\boxed{", None, "no answer"),
    ("\\boxed", None, "no answer"),
]


@pytest.mark.parametrize(("text", "answer", "how"), TABLE)
def test_table(text: str, answer: str | None, how: str) -> None:
    found = extract_maths(text)
    assert (found.text, found.how) == (answer, how)


FRAGMENTS = [r"\boxed{", r"\fbox", "}", "{", "\\", "$", "$$", r"\[", r"\]", "<think>", "</think>", "####", "=", "\n"]
MESSY = st.lists(st.one_of(st.sampled_from([*FRAGMENTS, "The answer is ", "12", " "]), st.text(max_size=5))).map(
    "".join
)


@given(MESSY)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_text_gives_a_part_of_itself_or_nothing(text: str) -> None:
    found = extract_maths(text)
    assert found.how
    if found.text is not None:
        assert found.text == found.text.strip() != ""
        without_marks = text.replace("−", "-").replace("*", "").replace("_", "").replace("`", "")
        assert found.text in text.replace("−", "-") or found.text in without_marks


def balanced(depth: int = 3) -> st.SearchStrategy[str]:
    leaf = st.sampled_from(["x", "1", r"\frac", r"\{", r"\}", r"\\", ",", " y "])
    return st.recursive(leaf, lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"))


@given(st.lists(balanced(), min_size=1, max_size=4).map("".join).filter(str.strip), MESSY)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_balanced_content_comes_back_whole(content: str, before: str) -> None:
    assert last_boxed(before.replace("\\", "") + r" \boxed{" + content + "} done") == content.strip()


@given(st.text(alphabet="{}\\a", max_size=12))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_braced_agrees_with_counting(text: str) -> None:
    """Oracle: erase escaped characters, then the first prefix with as many closing as opening braces."""
    source = "{" + text
    found = braced(source, 0)
    plain, place = [], 0
    while place < len(source):
        escaped = source[place] == "\\"
        plain += ["__"[: len(source[place : place + 2])]] if escaped else [source[place]]
        place += 2 if escaped else 1
    flat = "".join(plain)
    ends = [n for n in range(1, len(flat) + 1) if flat[:n].count("{") == flat[:n].count("}")]
    assert found == (source[1 : ends[0] - 1] if ends else None)


@given(st.text(alphabet="ab\n", max_size=20), st.text(alphabet="ab\n", max_size=20))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_reasoning(thought: str, answer: str) -> None:
    assert strip_reasoning(f"<think>{thought}</think>{answer}") == answer
    assert strip_reasoning(f"{thought}</think>{answer}") == answer
    assert strip_reasoning(answer) == answer
    assert strip_reasoning(f"<think>{thought}{answer}") is None
