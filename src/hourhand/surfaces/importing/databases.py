"""The tables of other schedulers, read and never written, in whichever database they are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hourhand.core.errors import ConfigurationError, InvalidOption

MOST_ROWS = 100_000


class Tables:
    """`with Tables(url) as tables: tables.rows("name")`."""

    def __init__(self, url: str) -> None:
        try:
            import sqlalchemy
        except ImportError:
            raise ConfigurationError("reading a database needs SQLAlchemy: pip install 'hourhand[import]'") from None
        self._sql: Any = sqlalchemy
        try:
            self._url = self._with_driver(sqlalchemy.make_url(url))
            # The words of an error must not repeat the password.
            self.shown = self._url.render_as_string(hide_password=True)
            self._check_file()
            self._engine = sqlalchemy.create_engine(self._url)
        except sqlalchemy.exc.ArgumentError:
            raise InvalidOption(
                "--from-database takes the URL of a database, such as postgresql://me@host/shop or sqlite:///beat.sqlite3"
            ) from None
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"{self.shown} needs the driver {error.name}, which is not installed here") from None
        self._connection: Any = None

    def _with_driver(self, url: Any) -> Any:
        if url.drivername == "postgres":
            url = url.set(drivername="postgresql")
        if url.drivername == "postgresql":
            known = [one for one in ("psycopg", "psycopg2") if find_spec(one)]
            return url.set(drivername=f"postgresql+{known[0]}") if known else url
        return url

    def _check_file(self) -> None:
        """SQLite would make a new, empty database of a misspelt name."""
        name = self._url.database
        if self._url.get_backend_name() == "sqlite" and name and not name.startswith("file:") and not Path(name).is_file():
            raise InvalidOption(f"there is no file {name}")

    def __enter__(self) -> Tables:
        try:
            self._connection = self._engine.connect()
        except Exception as error:
            raise self._refused(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._engine.dispose()

    def has(self, name: str) -> bool:
        schema, _, table = name.rpartition(".")
        try:
            return bool(self._sql.inspect(self._connection).has_table(table, schema=schema or None))
        except self._sql.exc.SQLAlchemyError as error:
            raise self._refused(error) from None

    def rows(self, name: str, *columns: str) -> list[dict[str, Any]]:
        """All rows, of these columns or of all that there are: versions differ in what they have."""
        schema, _, table = name.rpartition(".")
        try:
            names = columns or [one["name"] for one in self._sql.inspect(self._connection).get_columns(table, schema or None)]
            # Without types: what a driver makes of a value is all that is the same for a table that others have made.
            source = self._sql.table(table, *(self._sql.column(one) for one in names), schema=schema or None)
            found = self._connection.execute(self._sql.select(source).limit(MOST_ROWS + 1)).mappings().all()
        except self._sql.exc.SQLAlchemyError as error:
            raise self._refused(error) from None
        if len(found) > MOST_ROWS:
            raise InvalidOption(f"the table {name} has more than {MOST_ROWS:,} rows")
        return [dict(one) for one in found]

    def _refused(self, error: Exception) -> ConfigurationError:
        said = " ".join(str(getattr(error, "orig", None) or error).split())
        return ConfigurationError(f"{self.shown} cannot be read: {said[:300]}")
