"""Thousands of requests made from the OpenAPI document, right ones and wrong ones: each answer is as the document says."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path

import asyncpg
import pytest

from hourhand.storage.migrate import migrate
from tests.support.api import ADMIN, ApiProcess, Client, bury
from tests.support.document import Document

SCHEMA = f"t_generated_{uuid.uuid4().hex[:8]}"


@pytest.mark.timeout(400)
async def test_generated_requests_are_answered_as_the_document_says(embedded_url: str, tmp_path: Path, project: Path) -> None:
    sql = await asyncpg.connect(embedded_url)
    await migrate(sql, SCHEMA)
    api = ApiProcess(embedded_url, SCHEMA, tmp_path)
    try:
        await api.started()
        async with Client(api.base, ADMIN) as client:
            for number in range(20):
                (await client.put(f"jobs/job-{number}", {"schedule": "0 * * * *", "queue": "some"})).ok(201)
                run = (await client.post("runs", {"task": "t", "queue": "some", "key": f"k{number}"})).ok(201)["run_id"]
                await bury(sql, SCHEMA, run)
            operations = len(Document((await client.get("openapi.json")).ok()).operations)
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(project / "tests" / "schemathesis.toml"), "run",
             f"{api.base}/api/v1/openapi.json", "--header", f"Authorization: Bearer {ADMIN}"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(project)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        assert done.returncode == 0
        assert f"{operations - 1} selected / {operations} total" in done.stdout, "all but the one that has no end"
        assert "Traceback" not in api.news()
    finally:
        api.stop()
        await sql.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
        await sql.close()
