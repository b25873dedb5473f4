"""A mutant whose text is no longer in the source breaks nothing: it is found here, not when somebody runs all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_what_it_breaks_is_there(mutant: object, project: Path) -> None:
    for file, old in [(mutant.file, mutant.old), *((file, old) for file, old, _ in mutant.also)]:  # type: ignore[attr-defined]
        assert old in (project / file).read_text(), file


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if "/migrations/" in one.file], ids=lambda one: one.name)
def test_what_it_breaks_is_not_replaced_by_a_later_migration(mutant: object, project: Path) -> None:
    file = project / mutant.file  # type: ignore[attr-defined]
    later = "".join(one.read_text() for one in sorted(file.parent.glob("*.sql")) if one.name > file.name)
    before = file.read_text().partition(mutant.old)[0]  # type: ignore[attr-defined]
    inside = re.findall(r"^CREATE (?:OR REPLACE )?FUNCTION (hourhand\.\w+)\(|^END \$\$;|^\$\$;", before, re.MULTILINE)
    if inside and inside[-1]:
        assert f"CREATE OR REPLACE FUNCTION {inside[-1]}(" not in later, inside[-1]
