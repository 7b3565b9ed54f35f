"""Numbers in prose: a table of answers as models write them to word problems, and properties over written forms."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.answers import extract_number
from tasks.numbers import stated_number, values
from tasks.reasoning import TRUNCATED

TABLE = [
    # where it stands
    ("Janet sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs a day.\nShe makes 9 * 2 = $18 every day.\n#### 18", "18"),
    ("#### 1,080", "1080"),
    ("#### $1,080.50", "1080.50"),
    ("####-5", "-5"),
    ("#### 75%", "75"),
    ("#### 12 hours", "12"),
    ("So she makes $9 \\times 2 = \\boxed{18}$ dollars.", "18"),
    ("\\boxed{18 \\text{ dollars}}", "18"),
    ("\\boxed{\\$18}", "18"),
    ("\\boxed{\\$1{,}800}", "1800"),
    ("$\\boxed{1\\,800}$", "1800"),
    ("\\boxed{-7}", "-7"),
    ("\\boxed{75\\%}", "75"),
    ("\\boxed{\\frac{3}{4}}", "3/4"),
    ("\\boxed{2\\frac{1}{2}}", "5/2"),
    ("\\boxed{x = 12}", "12"),
    ("\\boxed{\\text{18 eggs}}", "18"),
    ("The answer is 18.", "18"),
    ("The answer is $18.", "18"),
    ("The answer is **$18**.", "18"),
    ("**Answer:** 18 dollars every 2 days", "18"),
    ("Answer: $18", "18"),
    ("Answer: 18 eggs", "18"),
    ("The final answer is: $\\$18$.", "18"),
    ("The final answer is $18$. I hope it is correct.", "18"),
    ("Final Answer: 3 + 4 = 7", "7"),
    ("Final answer:\n\n42", "42"),
    ("The answer to the question is that after 2 days she has 18 eggs.", "18"),
    ("The answer is 12, because 3 * 4 = 12.", "12"),
    ("The answer is \\(x = 540\\).", "540"),
    ("The answer is 5. Wait, that is wrong.\nThe answer is 6.", "6"),
    ("So the result is 5 apples a box.\nIn total she has 3 × 5 = 15 apples.", "15"),
    ("In total: 15 apples.", "15"),
    ("He needs **48** eggs for the 2 cakes.", "48"),
    ("Therefore, she makes **$18** every day at the market.", "18"),
    ("1. Each has 4.\n2. Both have 8.\n\nThat is all.", "8"),
    ("Thus he has 8 left.\n\nLet me know if anything is unclear!", "8"),
    # currency
    ("He pays $2,125.", "2125"),
    ("It costs US$45.", "45"),
    ("He pays €45.50 in all.", "45.50"),
    ("He pays 45,50 € in all.", "45.50"),
    ("The total is £1.5 million.", "1500000"),
    ("So he owes Rs. 2,500.", "2500"),
    ("So she owes 300 USD.", "300"),
    ("His profit is $70k.", "70000"),
    ("The company made $2.5M.", "2500000"),
    ("It is worth ¥12,000.", "12000"),
    # signs
    ("The temperature is -5 degrees.", "-5"),
    ("The temperature is −5 °C.", "-5"),
    ("The temperature is –5°C.", "-5"),
    ("The change is -$20.", "-20"),
    ("The change is $-20.", "-20"),
    ("He is at minus 3.", "-3"),
    ("His balance is negative 40 dollars.", "-40"),
    ("The change is +7.", "7"),
    ("So 10-3=7", "7"),
    ("It takes 3-5 days", "5"),
    # separators and decimals
    ("There are 1,234,567 people.", "1234567"),
    ("There are 12 000 people.", "12000"),
    ("There are 12\u202f000 people.", "12000"),
    ("There are 12'500 people.", "12500"),
    ("He pays 1.234,56 euros.", "1234.56"),
    ("He pays 1,234.56 dollars.", "1234.56"),
    ("It weighs .5 kg.", "0.5"),
    ("It weighs 0.75kg.", "0.75"),
    ("It weighs 18.00 kg.", "18"),
    ("There are 3, 4 or 5.", "5"),
    # units, percent, powers, fractions
    ("The area is 18 m^2.", "18"),
    ("The area is 18 m².", "18"),
    ("The volume is 64 cm^{3}.", "64"),
    ("It is 25% more.", "25"),
    ("He drives at 60mph.", "60"),
    ("He drives at 60 miles/hour.", "60"),
    ("It takes 2 1/2 hours.", "5/2"),
    ("It is 3/4 of the cake.", "3/4"),
    ("The mass is 1.2 × 10^3 kg.", "1200"),
    ("The mass is $1.2 \\times 10^{3}$.", "1200"),
    ("That is 3 thousand people.", "3000"),
    ("She was born on the 18th.", "18"),
    ("He wins the 1-hour race and gets 20.", "20"),
    ("The train leaves at 5:30 pm with 80 people.", "80"),
    ("On 12/25/2020 she had 7.", "7"),
    ("Room A4 and CO2 stay out; 6 is it.", "6"),
    # nothing, or not yet
    ("<think>It is 5, so 18.", None),
    ("<think>5?</think>The answer is 18.", "18"),
    ("5?\n</think>\n\n18", "18"),
    ("I do not know.", None),
    ("", None),
    ("The answer is A.", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), TABLE)
def test_table(text: str, value: str | None) -> None:
    found = extract_number(text)
    if value is None:
        assert found.text is None
        assert found.how in (TRUNCATED, "no answer")
    else:
        assert found.text is not None, found.how
        assert Fraction(found.text) == Fraction(value)


def test_the_table_is_long_enough() -> None:
    assert len({text for text, _ in TABLE}) >= 60


CURRENCIES = ["", "$", "€", "£", "\\$", "US$", "USD "]
UNITS = ["", " apples", "%", "\\%", " km", "kg", " dollars a day", " m^2"]
SIGNS = ["", "-", "−", "–", "+", "minus ", "negative "]
SEPARATORS = ["", ",", "\u202f", "\u00a0", "'", "{,}", "\\,"]
FRAMES = [
    "The answer is {}.",
    "**Answer:** {}",
    "#### {}",
    "She starts with 7 and so she has {} in the end.",
    "3 + 4 = 7\nIt comes to {}\n",
    "<think>7 or 9?</think>So it is {}!",
    "\\boxed{{{}}}",
]


def grouped(number: int, separator: str) -> str:
    return f"{number:,}".replace(",", separator)


@given(
    st.integers(0, 10**8),
    st.none() | st.integers(1, 99),
    *map(st.sampled_from, (SIGNS, CURRENCIES, SEPARATORS, UNITS, FRAMES)),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_every_way_to_write_a_number(
    whole: int, cents: int | None, sign: str, currency: str, separator: str, unit: str, frame: str
) -> None:
    """Oracle: the number that was written."""
    written = f"{sign}{currency}{grouped(whole, separator)}{'' if cents is None else f'.{cents:02d}'}{unit}"
    value = whole + Fraction(cents or 0, 100)
    found = extract_number(frame.format(written))
    assert found.text is not None
    assert Fraction(found.text) == (-value if sign not in ("", "+") else value), written


@given(st.integers(1, 99), st.integers(1, 99), st.integers(0, 9), st.sampled_from(FRAMES))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_fractions_and_mixed_numbers(top: int, bottom: int, whole: int, frame: str) -> None:
    value = Fraction(top, bottom)
    for written in (f"{top}/{bottom}", f"\\frac{{{top}}}{{{bottom}}}"):
        text = extract_number(frame.format(written)).text
        assert text is not None
        assert Fraction(text) == value
        if whole:
            text = extract_number(frame.format(f"{whole} {written}" if "/" in written else f"{whole}{written}")).text
            assert text is not None
            assert Fraction(text) == whole + value


@given(st.text(alphabet="0123456789,.-−$€%/ \\{}^x*=()eE+ kM\n", max_size=40) | st.text(max_size=40))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_text_gives_numbers_or_nothing(text: str) -> None:
    assert all(Fraction(value) is not None for value in values(text))
    stated = stated_number(text)
    assert stated is None or Fraction(stated) is not None
    assert extract_number(text).how


def test_rubbish_takes_no_time() -> None:
    for text in ("1" * 100_000, "1," * 50_000, "1/1 " * 30_000, "$" * 100_000, "9e9 " * 30_000, "- " * 50_000,
                 "the answer is " * 10_000, "**1**" * 20_000, "\\boxed{" * 10_000, "<think>" * 20_000):  # fmt: skip
        extract_number(text)
