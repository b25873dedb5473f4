"""Who takes part: adapters/, each a program and a page about it, installed in an environment of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.observe import PROJECT

HERE = Path(__file__).parent
MEASURES = ("many", "single", "drain", "latency", "register", "due", "kill", "held")


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    adapter: str
    server: str
    packages: tuple[str, ...]
    """Exact versions, of PyPI or, for an adapter in JavaScript, of npm; there with Node.js itself as the last, of a version that they support."""
    settings: str
    unfinished: str | None = None
    """SQL: how many runs have no outcome yet. Without it a run is done when its handler is."""
    no: dict[str, str] = field(default_factory=dict)
    """What it cannot do, and why."""
    remarks: dict[str, str] = field(default_factory=dict)
    """What one must know to read a figure of its."""
    limited: bool = False
    """Whether its adapter tells what plain SQL does with its tables."""
    runs: int = 100_000
    """For bulk and drain; more for the fast ones, so that these last some seconds, and fewer for the slow ones."""

    @property
    def node(self) -> bool:
        return self.adapter.endswith(".mjs")

    def home(self, build: Path) -> Path:
        """By what is in it: another version is another environment."""
        return build / f"{self.name}-{hashlib.sha256(repr(self.packages).encode()).hexdigest()[:8]}"

    def install(self, build: Path) -> None:
        home = self.home(build)
        if not self.packages or (home / ".installed").exists():
            return
        home.mkdir(parents=True, exist_ok=True)
        if self.node:
            if shutil.which("npm") is None:
                raise SystemExit(f"{self.title} needs npm: install Debian's package npm, or leave it out (--only)")
            (home / "package.json").write_text("{}")
            # First Node.js, then by that the others: npm looks whether they support the one that it runs on.
            *others, node = self.packages
            _run(["npm", "install", "--no-audit", "--no-fund", node], home)
            path = f"{home / 'node_modules' / '.bin'}:{os.environ['PATH']}"
            _run(["npm", "install", "--engine-strict", "--no-audit", "--no-fund", *others], home, PATH=path)
        else:
            _run([sys.executable, "-m", "venv", "."], home)
            _run(["bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.packages], home)
        (home / ".installed").touch()

    def command(self, build: Path, verb: str, *arguments: object) -> list[str]:
        home, words = self.home(build), [verb, *map(str, arguments)]
        if self.node:
            return [str(home / "node_modules" / ".bin" / "node"), str(home / self.adapter), *words]
        return [self._python(build), "-m", f"benchmarks.peers.adapters.{Path(self.adapter).stem}", *words]

    def _python(self, build: Path) -> str:
        return str(self.home(build) / "bin" / "python") if self.packages else sys.executable

    def prepare(self, build: Path) -> None:
        """Node looks for packages beside the file it runs, so a copy of the adapter stands among them."""
        if self.node:
            for source in (HERE / "adapters" / self.adapter, HERE / "kit.mjs"):
                (self.home(build) / source.name).write_text(source.read_text())

    def environment(self, url: str, meter: Path, measure: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOURHAND_", "PYTHON"))}
        return {**kept, "PYTHONPATH": str(PROJECT), "BENCH_URL": url, "BENCH_METER": str(meter), "BENCH_MEASURE": measure}

    def cannot(self, measure: str) -> str | None:
        """Why it need not be asked."""
        if measure == "held" and self.server != "postgresql":
            return "its runs are in Redis here"
        return self.no.get(measure)

    def fingerprint(self) -> str:
        """Of what it was measured with: its adapter, settings and versions."""
        text = (HERE / "adapters" / self.adapter).read_text()
        return hashlib.sha256(f"{text}\0{self.settings}\0{self.packages}".encode()).hexdigest()[:12]

    def versions(self) -> str:
        return ", ".join(self.packages)

    def installed(self, build: Path) -> list[str]:
        """Every package with its version, those that others brought along too."""
        home = self.home(build)
        if self.node:
            kept = json.loads((home / "node_modules" / ".package-lock.json").read_text())["packages"]
            return sorted(f"{place.rpartition('node_modules/')[2]}@{one['version']}" for place, one in kept.items())
        return _run([self._python(build), "-m", "pip", "freeze", "--exclude-editable"], PROJECT).splitlines()

    def of(self, runs: int) -> Peer:
        return replace(self, runs=runs)


def peers() -> list[Peer]:
    """Hourhand, then those on PostgreSQL, then the others."""
    found = []
    for path in sorted((HERE / "adapters").glob("*.toml")):
        one = tomllib.loads(path.read_text())
        adapter = next(beside.name for beside in path.parent.glob(f"{path.stem}.*") if beside != path)
        found.append(Peer(path.stem, **{**one, "adapter": adapter, "packages": tuple(one["packages"])}))
    return sorted(found, key=lambda peer: (peer.name != "hourhand", peer.server != "postgresql", peer.title.lower()))


def _run(command: list[str], where: Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=where, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{json.dumps(command)} failed in {where}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return done.stdout
