"""Tasks that get secrets and do not keep them to themselves; also as an app that child processes import."""

from __future__ import annotations

from typing import Any

import asyncpg

from hourhand import Context, Hourhand, PermanentFailure, Retry

ONCE = Retry(max_attempts=1)


def declare(app: Hourhand) -> Hourhand:
    @app.task(retry=ONCE, secret=["card.number"])
    async def tell(ctx: Context, card: dict[str, Any], password: str) -> None:
        raise ValueError(f"{card} was refused for {password!r}")

    @app.task(retry=ONCE, secret=["card.number"])
    def tell_in_a_thread(card: dict[str, Any], password: str) -> None:
        try:
            int(password)
        except ValueError as error:
            raise PermanentFailure(f"refused: {card['number']}") from error

    @app.task(retry=ONCE, secret=["card.number"], isolation="process")
    def tell_apart(ctx: Context, card: dict[str, Any], password: str) -> None:
        ctx.log.warning("tried", password=password)
        # So long that it is cut in the middle of the number.
        raise ValueError(f"{'x' * 1_990}{card['number']} for {password}")

    @app.task(secret=["card.number"])
    async def say(ctx: Context, card: dict[str, Any], password: str) -> dict[str, Any]:
        ctx.log.info("charging", number=card["number"])
        ctx.say(f"the password is {password}")
        ctx.progress(0.5, f"at {password}")
        return {"echo": password, "password": "other words", "card": {"number": 1}}

    return app


app = declare(Hourhand())


async def traces(sql: asyncpg.Connection, schema: str, word: str) -> set[str]:
    """In which columns of which tables of a schema a word can be read."""
    columns = await sql.fetch(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = $1 ORDER BY 1, 2", schema
    )
    found = set()
    for table, column in columns:
        if await sql.fetchval(f'SELECT count(*) FROM {schema}."{table}" WHERE strpos("{column}"::text, $1) > 0', word):
            found.add(f"{table.rstrip('_0123456789')}.{column}")
    return found
