"""Numbers as people write them, read from prose. Never raises for what a model wrote.

Understood: currency marks and codes before or after, signs (hyphen, minus, dash, "minus", before or after the currency),
separators (`1,234`, `1 234`, `1'234`, `1{,}234`, `1\\,234`, `1.234,56`), decimals (`.5`, `1,5`), percent signs and units
(dropped), powers of ten, fractions and mixed numbers, "1.5 million", "$3k". A number written in words is not.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
LETTERS = {"k": 10**3, "K": 10**3, "M": 10**6, "bn": 10**9, "B": 10**9}
MARK = r"(?:(?:US|AU|A|CA|C|NZ|HK|S)?\\?[$€£¥₹₩₽]|(?:USD|EUR|GBP|JPY|INR|CHF|Rs\.?)\s?)"
SIGN = r"(?:[-+−–]|\b(?:minus|negative)\s+)"
GAP = "[,\u00a0\u2009\u202f'’ ]|\\{,\\}|\\\\[,;:! ]"
NUMBER = re.compile(
    rf"""(?<![\w^.])(?<!\^\{{)                          # not inside a word, an identifier or an exponent
    (?:(?<![\w)\]}}%])(?P<sign>{SIGN}))?\s?(?P<currency>{MARK})?(?P<inner>[-−–](?=[\d.]))?
    (?:
      \\[dt]?frac\s?\{{(?P<top>\d+)\}}\s?\{{(?P<bottom>\d+)\}}
      |(?P<digits>\d{{1,3}}(?:\.\d{{3}})+,\d{{1,2}}(?!\d)    # 1.234,56
         |\d{{1,3}}(?:(?:{GAP})\d{{3}})+(?![\d-])(?:\.\d+)?   # 1,234.5
         |\d+,\d{{1,2}}(?![\d,])                           # 1,5
         |\d*\.\d+|\d+)
       (?:\s*(?:×|x|\*|\\times|\\cdot)\s*10\s?\^\s?\{{?(?P<power>[-−+]?\d+)\}}?
         |[eE](?P<e>[-+]?\d+)\b
         |\s?\\[dt]?frac\s?\{{(?P<mixed_top>\d+)\}}\s?\{{(?P<mixed_bottom>\d+)\}}
         |\s+(?P<part_top>\d+)\s?/\s?(?P<part_bottom>\d+)(?!\s?/?\d)
         |\s?/\s?(?P<under>\d+)(?!\s?/?\d))?
    )
    (?P<scale>\s*-?(?:hundred|thousand|million|billion|trillion)\b|(?:k|K|bn|M|B)\b)?""",
    re.VERBOSE,
)
MAX_LINE_CHARS = 2000  # of a line, its end: no result stands in the middle of so long a one


def stated_number(text: str) -> str | None:
    """The number that `text`, said to be the answer, comes to.

    The first one where it begins with a number ("18 dollars every 2 days"); else the last of its first sentence ("that
    after 2 days she has 18"). Of an equation its right side.
    """
    sentence = re.split(r"[.!?;](?:\s|$)", text[:MAX_LINE_CHARS])[0]
    sentence = re.sub(r"\*\*|__|`|\\[()\[\]]|\\left|\\right", "", sentence.rpartition("=")[2]).strip(" :~≈")
    sentence = re.sub(r"(?<![\w\\$])\$(?=[^\d.]*\\|[-+−]?[^$]*\$)|\$$", "", sentence)  # $ as the mark of a formula
    numbers = list(values(sentence))
    first = NUMBER.match(sentence.lstrip("($ "))
    return (numbers[0] if first else numbers[-1]) if numbers else None


def values(text: str) -> Iterator[str]:
    """Every number of `text` in plain form, in order. Times of day and dates are none."""
    text = re.sub(r"\b\d{1,2}:\d{2}(?::\d{2})?\b|\b\d{1,4}/\d{1,2}/\d{2,4}\b", " ", text)
    for match in NUMBER.finditer(text):
        value = value_of(match)
        if value is not None:
            yield value


def value_of(match: re.Match[str]) -> str | None:
    negative = (match["sign"] or "+").strip() in ("-", "−", "–", "minus", "negative") or bool(match["inner"])
    if match["top"]:
        number, is_fraction = ratio(match["top"], match["bottom"]), True
    else:
        number, is_fraction = plain_number(match["digits"]), False
        under = match["under"]
        top, bottom = match["mixed_top"] or match["part_top"], match["mixed_bottom"] or match["part_bottom"]
        exponent = match["power"] or match["e"]
        if exponent:
            power = int(exponent.replace("−", "-"))
            if abs(power) > 100:
                return None
            number = number * Fraction(10) ** power
        elif top:
            part, is_fraction = ratio(top, bottom), True
            number = None if part is None else number + part
        elif under:
            number, is_fraction = (number / int(under) if int(under) else None), True
    if number is None:
        return None
    scale = (match["scale"] or "").strip(" -")
    if scale in SCALES or (scale and (match["currency"] or scale in ("k", "K", "bn"))):
        number *= SCALES.get(scale) or LETTERS[scale]
    return spell(-number if negative else number, is_fraction)


def plain_number(digits: str) -> Fraction:
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d{1,2}", digits):
        digits = digits.replace(".", "").replace(",", ".")
    elif re.fullmatch(r"\d+,\d{1,2}", digits):
        digits = digits.replace(",", ".")
    return Fraction(re.sub(r"[^\d.]", "", digits))


def ratio(top: str, bottom: str) -> Fraction | None:
    return Fraction(int(top), int(bottom)) if int(bottom) else None


def spell(number: Fraction, is_fraction: bool) -> str:
    """`-12.5` where decimals end, `3/4` where it was written as a fraction."""
    if number.denominator == 1:
        return str(number.numerator)
    if is_fraction:
        return f"{number.numerator}/{number.denominator}"
    places = 0
    while (number * 10**places).denominator != 1:
        places += 1
    digits = str(abs(number.numerator) * 10**places // number.denominator).zfill(places + 1)
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
