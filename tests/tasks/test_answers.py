"""Maths extraction: a table of answers as models write them, and properties for any text."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.answers import braced, extract_maths, last_boxed
from tasks.maths import shared_grader
from tasks.reasoning import OPENS, TRUNCATED, opened_reasoning, strip_reasoning

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
    ("We add them.\nThat makes 1,234 apples.", "1234", "last number"),
    ("So he has 3 + 4 = 7", "7", "last number"),
    ("Hence $a = 3$ and $b = -4$.", "-4", "last formula"),
    (r"Thus \[ x = \frac{1}{2} \]", r"\frac{1}{2}", "last formula"),
    ("The temperature is -5", "-5", "last number"),
    ("Step 2. The result is 3.\nHence $a = 5$.", "5", "last formula"),
    ("So the result is 5.", "5", "phrase"),
    ("Solution: $x = 5$", "5", "phrase"),
    ("Thus\n\\[\nx = \\frac{1}{2}\n\\]\n", r"\frac{1}{2}", "last formula"),
    ("Thus\n$$\nn = 12.\n$$", "12.", "last formula"),
    ("Hence $x = 5$.\n\nLet me know if that helps!", "5", "last formula"),
    ("It costs $5 a day for 3 days.\nThat is $15 in all, or \\$15.", "15", "last number"),
    (r"\boxed{x=3}", "x=3", "boxed"),
    (r"\boxed{3\sqrt{2}}", r"3\sqrt{2}", "boxed"),
    (r"\boxed{(2, 3)}", "(2, 3)", "boxed"),
    (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "boxed"),
    (r"\boxed{(-\infty, 2]}", r"(-\infty, 2]", "boxed"),
    (r"\boxed{90^\circ}", r"90^\circ", "boxed"),
    (r"**\boxed{12}**", "12", "boxed"),
    ("```\n\\boxed{12}\n```", "12", "boxed"),
    (r"The final answer is: $\boxed{\frac{14}{3}}$. I hope it is correct.", r"\frac{14}{3}", "boxed"),
    (r"The answer is $\frac{14}{3}$, which is about 4.67.", r"\frac{14}{3}", "phrase"),
    ("[THINK]\\boxed{3}[/THINK]\\boxed{4}", "4", "boxed"),
    ("<thinking>\\boxed{3}</thinking>\\boxed{4}", "4", "boxed"),
    ("<seed:think>\\boxed{3}</seed:think>\\boxed{4}", "4", "boxed"),
    ("[THINK]\\boxed{3}", None, TRUNCATED),
    ("<thinking>\nmaybe \\boxed{3}", None, TRUNCATED),
    ("The answer is 4.</reasoning>", "4.</reasoning>", "phrase"),
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


def test_the_table_is_long_enough() -> None:
    assert len({text for text, _, _ in TABLE}) >= 60


GRADED = [  # gold, answer, right
    ("18", r"The answer is \$18.", True),
    ("18", "So he pays $18.", True),
    ("1234", "The answer is 1,234.", True),
    ("1200", r"\boxed{1{,}200}", True),
    ("1200", r"\boxed{1,\!200}", True),
    ("-4", r"Hence $a = -4$.", True),
    ("-4", "The answer is −4.", True),
    ("-4", "The answer is 4.", False),
    (r"\frac{1}{2}", r"\boxed{0.5}", True),
    (r"\frac{1}{2}", r"\boxed{1/2}", True),
    (r"\frac{1}{2}", r"\boxed{\dfrac12}", True),
    (r"\frac{1}{2}", r"\boxed{\frac{2}{1}}", False),
    ("12", r"\boxed{12\text{ cm}}", True),
    ("12", r"\boxed{12 \text{ cm}^2}", True),
    ("90", r"\boxed{90^\circ}", True),
    ("x=3", r"\boxed{3}", True),
    ("3", r"\boxed{x=3}", True),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, \pi/2)}", True),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(\pi/2, 3)}", False),
    (r"\{1,2\}", r"\boxed{\{2, 1\}}", True),
    ("[2,5)", r"\boxed{[2, 5)}", True),
    ("[2,5)", r"\boxed{(2, 5]}", False),
    (r"3\sqrt{2}", r"\boxed{\sqrt{18}}", True),
    ("p - q", r"\boxed{-q+p}", True),
    (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}", True),
    (r"\text{Evelyn}", r"\boxed{\text{Carla}}", False),
    (r"\text{(C)}", r"\boxed{C}", True),
    ("6+9i", r"\boxed{9i + 6}", True),
    ("17", "<think>18</think>17", True),
    ("17", "<think>\\boxed{17}", False),
]


@pytest.mark.parametrize(("gold", "text", "right"), GRADED)
def test_found_and_compared(gold: str, text: str, right: bool) -> None:
    answer = extract_maths(text)
    equal = answer.text is not None and shared_grader(10.0).compare(gold, answer.text)[0]
    assert equal == right, answer


FRAGMENTS = [r"\boxed{", r"\fbox", "}", "{", "\\", "$", "$$", r"\[", r"\]", "<think>", "</think>", "####", "=", "\n"]
MESSY = st.lists(st.one_of(st.sampled_from([*FRAGMENTS, "The answer is ", "12", " "]), st.text(max_size=5))).map(
    "".join
)


@given(MESSY)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_any_text_gives_a_part_of_itself_a_number_or_nothing(text: str) -> None:
    found = extract_maths(text)
    assert found.how
    if found.text is not None:
        assert found.text == found.text.strip() != ""
        without_marks = text.replace("−", "-").replace("*", "").replace("_", "").replace("`", "")
        is_part = found.text in text or found.text in without_marks
        assert is_part or (found.how == "last number" and Fraction(found.text) is not None)


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
    for opens, closes in (("[THINK]", "[/THINK]"), ("<thinking>", "</thinking>"), ("◁think▷", "◁/think▷")):
        assert strip_reasoning(f"{opens}{thought}{closes}{answer}") == answer
        assert strip_reasoning(f"{answer}\n{opens}{thought}") is None


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("<|im_start|>assistant\n", ""),
        ("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", ""),
        ("<|Assistant|><think>", "<think>"),
    ],
)
def test_a_block_that_the_template_opened(prompt: str, opened: str) -> None:
    """Such an answer holds no opening mark; cut off, only the prompt tells that it is reasoning."""
    assert opened_reasoning(prompt) == opened
    if opened:
        assert OPENS.search(opened)
        assert strip_reasoning(opened + "I think 3") is None
        assert strip_reasoning(opened + "I think 3</think>4") == "4"
