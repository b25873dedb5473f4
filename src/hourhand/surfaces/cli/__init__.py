"""The `hourhand` command."""

from hourhand.surfaces.cli.main import main

__all__ = ["main"]
