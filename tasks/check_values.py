"""Plain values as JSON, between the process of a test and the process of the program that it tests.

Not imported by the harness: its text stands in front of `check_runner.py` and `serve_runner.py`. What arrives is made of
exact built-in types, whatever the program returned: a subclass that equals everything comes as its plain base, and any
other object as one that equals nothing but itself.
"""

import decimal
import fractions

BIG = 2**63
MAKERS: dict = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "iterator": iter}
MAX_ITEMS = 1_000_000  # of an iterator


class Foreign:
    """Stands for a value that is not plain."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def encode(value):
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -BIG < number < BIG else {"int": hex(number)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return {"float": float.__repr__(value)}
    if isinstance(value, complex):
        return {"complex": [float.__repr__(value.real), float.__repr__(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {type_name(value, (bytes, bytearray)): bytes(value).hex()}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(inner)] for key, inner in dict.items(value)]}
    if isinstance(value, list | tuple | set | frozenset):
        return {type_name(value, (list, tuple, set, frozenset)): [encode(inner) for inner in value]}
    if isinstance(value, range):
        return {"range": [encode(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, fractions.Fraction):
        return {"fraction": [encode(value.numerator), encode(value.denominator)]}
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if hasattr(type(value), "__next__") or isinstance(value, type({}.keys()) | type({}.values()) | type({}.items())):
        return {"iterator": [encode(inner) for inner, _ in zip(value, range(MAX_ITEMS), strict=False)]}
    return {"foreign": repr(value)[:200]}


def type_name(value, types):
    return next(kind.__name__ for kind in types if isinstance(value, kind))


def decode(value):
    """Raises an Exception of some kind for what `encode` does not write."""
    if not isinstance(value, dict):
        if value is None or type(value) in (bool, int, str):
            return value
        raise ValueError("not an encoded value")
    [(kind, inner)] = value.items()
    if kind in MAKERS:
        return MAKERS[kind]([decode(one) for one in inner])
    if kind == "dict":
        return {decode(key): decode(one) for key, one in inner}
    if kind == "float":
        return float(inner)
    if kind == "int":
        return int(inner, 16)
    if kind == "complex":
        return complex(float(inner[0]), float(inner[1]))
    if kind in ("bytes", "bytearray"):
        return bytearray.fromhex(inner) if kind == "bytearray" else bytes.fromhex(inner)
    if kind == "range":
        return range(*[decode(one) for one in inner])
    if kind == "fraction":
        return fractions.Fraction(*[decode(one) for one in inner])
    if kind == "decimal":
        return decimal.Decimal(inner)
    if kind == "foreign":
        return Foreign(str(inner))
    raise ValueError("not an encoded value")
