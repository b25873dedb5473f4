"""The OpenAPI document as a test reads it: its operations, their examples, and whether an answer is what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from jsonschema import Draft202012Validator

from tests.support.api import Answer, Client


@dataclass(frozen=True)
class Operation:
    name: str
    method: str
    path: str
    about: dict[str, Any]

    @property
    def role(self) -> str:
        return str(self.about["x-role"])

    @property
    def parameters(self) -> list[dict[str, Any]]:
        return list(self.about.get("parameters", []))

    def place(self, **values: str) -> str:
        """Its path with these values in it, and the examples of its query."""
        path = self.path
        for name in [one["name"] for one in self.parameters if one["in"] == "path"]:
            path = path.replace(f"{{{name}}}", quote(values.get(name, "none"), safe=""))
        query = {one["name"]: one["example"] for one in self.parameters if one["in"] == "query" and "example" in one}
        return f"{path}?{urlencode(query)}" if query else path

    @property
    def body(self) -> tuple[str, Any] | None:
        """The type and the example of what is sent."""
        for kind, content in self.about.get("requestBody", {}).get("content", {}).items():
            return kind, content["example"]
        return None


class Document:
    def __init__(self, plain: dict[str, Any]) -> None:
        self.plain = plain
        self.operations = {one.name: one for one in self._operations()}

    def _operations(self) -> Iterator[Operation]:
        for path, methods in self.plain["paths"].items():
            for method, about in methods.items():
                yield Operation(about["operationId"], method.upper(), path, about)

    def check(self, schema: dict[str, Any], value: Any) -> None:
        Draft202012Validator({**schema, "components": self.plain["components"]}).validate(value)

    def promised(self, operation: Operation, answer: Answer) -> None:
        """Whether the document has this answer, of this type and of this shape."""
        response = operation.about["responses"].get(str(answer.status))
        assert response is not None, (
            f"{operation.name} answered {answer.status}, of which the document has nothing: {answer.body!r}"
        )
        if not answer.body:
            return
        kind = answer.headers["content-type"].partition(";")[0]
        content = response["content"].get(kind)
        assert content is not None, f"{operation.name} answered {answer.status} as {kind}; the document has {response['content']}"
        if kind.endswith("json"):
            self.check(content["schema"], answer.json)


class Walker:
    """Uses operations as the document prints them."""

    def __init__(self, client: Client, document: Document) -> None:
        self.client, self.document = client, document
        self.used: set[str] = set()

    async def use(self, operation_id: str, /, *, body: Any = None, **values: str) -> Answer:
        """With the example of the document, or with another body."""
        operation = self.document.operations[operation_id]
        self.used.add(operation_id)
        example = operation.body
        given: dict[str, Any] = {}
        if example is not None:
            kind, value = example
            sent = value if body is None else body
            given = {"data": sent.encode(), "headers": {"Content-Type": kind}} if isinstance(sent, str) else {"json": sent}
        answer = await self.client.call(operation.method, operation.place(**values), **given)
        self.document.promised(operation, answer)
        return answer
