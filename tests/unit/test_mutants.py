"""A mutant whose text is no longer in the source breaks nothing: it is found here, not when somebody runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_what_it_breaks_is_there(mutant: object, project: Path) -> None:
    for file, old in [(mutant.file, mutant.old), *((file, old) for file, old, _ in mutant.also)]:  # type: ignore[attr-defined]
        assert old in (project / file).read_text(), file
