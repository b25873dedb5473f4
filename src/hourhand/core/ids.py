"""Public ids: `r_…` for runs, `j_…` for jobs; inside they are integers."""

from __future__ import annotations

from hourhand.core.errors import UnknownRun

# Crockford's base 32, lower case: no i, l, o, u to misread over the phone.
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUES = {letter: value for value, letter in enumerate(ALPHABET)}
_LARGEST = 2**63 - 1


def encode(prefix: str, number: int) -> str:
    digits = ""
    rest = number
    while True:
        rest, digit = divmod(rest, 32)
        digits = ALPHABET[digit] + digits
        if not rest:
            return f"{prefix}_{digits}"


def run_id(number: int) -> str:
    return encode("r", number)


def job_id(number: int) -> str:
    return encode("j", number)


def parse_job_id(text: str) -> int | None:
    """The number behind `j_…`; None if the text is no such id."""
    word = text.strip().lower()
    digits = word.removeprefix("j_")
    if digits == word or not 0 < len(digits) <= 13 or not set(digits) <= _VALUES.keys():
        return None
    number = 0
    for letter in digits:
        number = number * 32 + _VALUES[letter]
    return number if number <= _LARGEST else None


def parse_run_id(text: str | int) -> int:
    """The number behind `r_…`. Plain numbers, as the SQL function returns them, are taken too."""
    if not isinstance(text, (str, int)) or isinstance(text, bool):
        raise UnknownRun(f"{text!r} is not a run id; run ids look like r_1f3k")
    if isinstance(text, int):
        return text
    word = text.strip().lower()
    if word.isdecimal() and len(word) < 20 and int(word) <= _LARGEST:
        return int(word)
    number = 0
    digits = word.removeprefix("r_")
    if digits == word or not digits or len(digits) > 13:
        raise UnknownRun(f"{text!r} is not a run id; run ids look like r_1f3k")
    for letter in digits:
        if letter not in _VALUES:
            raise UnknownRun(f"{text!r} is not a run id; run ids look like r_1f3k")
        number = number * 32 + _VALUES[letter]
    if number > _LARGEST:
        raise UnknownRun(f"{text!r} is not a run id; run ids look like r_1f3k")
    return number
