"""What must not be in the source at all, whoever calls it with whatever."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "hourhand"
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all", "__import__",
}  # fmt: skip
IMPORTERS = {
    "engine/reference.py": "the app or the task that the operator names on the command line, or that a parent tells its child",
    "surfaces/cli/loading.py": "the module of a command, by a name in the table of commands",
    "surfaces/importing/celery_app.py": "the app that the operator wants to import jobs from",
}
"""Where a module is imported by a name that is not written there, and who gives the name."""
STARTERS = {"run", "Popen", "call", "check_call", "check_output"}
SAFE_LOADERS = {"CSafeLoader", "SafeLoader", "loader"}


def _files() -> list[Path]:
    found = sorted(SOURCE.rglob("*.py"))
    assert len(found) > 50
    return found


def _name(node: ast.AST) -> str:
    """`a.b.c` for what is written so."""
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield _name(node.func), node


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _faults(text: str, place: str) -> list[str]:
    tree = ast.parse(text)
    faults = [f"imports {name}" for name in _imported(tree) if name.split(".")[0] in FORBIDDEN_MODULES]
    for name, call in _calls(tree):
        if name in FORBIDDEN_CALLS:
            faults.append(f"calls {name}")
        keywords = {one.arg: one.value for one in call.keywords}
        shell = keywords.get("shell")
        if (
            name.split(".")[-1] in STARTERS
            and shell is not None
            and not (isinstance(shell, ast.Constant) and shell.value is False)
        ):
            faults.append(f"{name} with a shell")
        if name == "yaml.load_all" and _name(keywords.get("Loader", ast.Name("nothing"))).split(".")[-1] not in SAFE_LOADERS:
            faults.append("yaml.load_all without a safe loader")
        by_name = name.split(".")[-1] == "import_module" or name.startswith("runpy.")
        if by_name and not (call.args and isinstance(call.args[0], ast.Constant)) and place not in IMPORTERS:
            faults.append("imports by a name that comes from elsewhere")
    return faults


@pytest.mark.parametrize("path", _files(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_that_runs_what_somebody_sends(path: Path) -> None:
    assert _faults(path.read_text(), path.relative_to(SOURCE).as_posix()) == []


def test_the_places_that_import_by_name_are_these() -> None:
    for place in IMPORTERS:
        assert _faults((SOURCE / place).read_text(), "elsewhere") == ["imports by a name that comes from elsewhere"], place


def test_the_api_knows_no_importer() -> None:
    """A name that comes over the network is looked up, never imported."""
    for path in sorted((SOURCE / "surfaces" / "rest").glob("*.py")):
        names = set(_imported(ast.parse(path.read_text())))
        assert not [
            one
            for one in names
            if one.startswith(("importlib", "runpy", "hourhand.engine.reference", "hourhand.surfaces.importing"))
        ]


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from pickle import loads", "eval('1')", "exec(x)", "import os\nos.system(x)", "subprocess.run(x, shell=True)",
     "subprocess.Popen(x, shell=y)", "yaml.load(x)", "yaml.load_all(x)", "yaml.load_all(x, Loader=yaml.Loader)", "importlib.import_module(x)",
     "import_module(f'{x}.y')", "__import__(x)", "asyncio.create_subprocess_shell(x)", "compile(x, 'y', 'exec')"],
)  # fmt: skip
def test_the_walk_sees(text: str) -> None:
    assert len(_faults(text, "somewhere.py")) == (2 if text.startswith("from pickle") else 1)
