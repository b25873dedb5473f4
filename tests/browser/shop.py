"""The app behind the pages that are looked at: a shop with work that succeeds, fails, is retried, and goes on and on."""

from __future__ import annotations

import asyncio

from hourhand import Context, Hourhand, PermanentFailure, Retry

app = Hourhand(name="shop")


@app.task(queue="mail", secret=["api_token"])
async def send_newsletter(ctx: Context, subscribers: int = 3, api_token: str = "") -> dict[str, int]:
    for sent in range(subscribers):
        ctx.log.info("sent", number=sent + 1)
        ctx.progress((sent + 1) / subscribers, done=sent + 1, total=subscribers)
    return {"sent": subscribers}


@app.task(queue="billing", retry=Retry(max_attempts=3, base=0, cap=0))
async def charge_card(ctx: Context, invoice: int) -> str:
    ctx.log.warning("charging", invoice=invoice)
    if invoice % 2:
        raise ConnectionError(f"the bank did not answer for invoice {invoice}")
    return "paid"


@app.task(queue="billing")
async def audit_books(year: int) -> None:
    raise PermanentFailure(f"the books of {year} do not balance")


@app.task(queue="reports")
async def export(rows: int = 10) -> dict[str, int]:
    return {"rows": rows}


@app.task(queue="reports")
async def publish(result: dict[str, int]) -> None: ...


@app.task(queue="reports")
async def long_report(ctx: Context, seconds: float = 600) -> None:
    ctx.progress(0.3, "collecting", done=3, total=10)
    ctx.log.info("collecting")
    await asyncio.sleep(seconds)


@app.task(queue="books")
async def sync_ledger(ctx: Context, account: str, password: str) -> None:
    raise PermanentFailure(f"{account} is refused with {password}")


@app.task(queue="books")
async def narrate(ctx: Context, lines: int = 600) -> None:
    for number in range(lines):
        ctx.log.info(f"line number {number + 1}", chapter=number // 10)
        await asyncio.sleep(0.25)
