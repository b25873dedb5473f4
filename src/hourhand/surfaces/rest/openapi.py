"""The OpenAPI document: FastAPI's, with the bodies, roles, problems and examples that belong to each operation."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from hourhand import __version__
from hourhand.surfaces.rest import models
from hourhand.surfaces.rest.answers import JSON
from hourhand.surfaces.rest.examples import ANSWERS, PARAMETERS, REQUESTS
from hourhand.surfaces.rest.problems import CONTENT_TYPE
from hourhand.surfaces.rest.route import KEY

_ABOUT = """Schedules, runs and the fleet of a Hourhand database. Errors are RFC 9457 problem details. Lists are JSON arrays; the
`Link` header of a full page names the next one. A job's `ETag` is its version. A change with an `Idempotency-Key` is carried
out once, and repeated with the answer it had."""
_REF = "#/components/schemas/{model}"
_PROBLEMS = {
    "400": "The request cannot be read",
    "401": "No key, or one that opens nothing",
    "403": "The key's role or scope does not allow it",
    "404": "There is no such thing, or none that the key may see",
    "409": "In conflict with what is there",
    "412": "It has changed since",
    "413": "Too large",
    "415": "Not JSON",
    "422": "It cannot be carried out as given",
    "503": "The database cannot be reached",
}
_HEADERS = {
    "once": {
        "name": "Idempotency-Key",
        "description": "Carry this out once, however often it is sent.",
        "pattern": f"^{KEY.pattern}$",
    },
    "if-match": {"name": "If-Match", "description": "The ETag of the version that was seen."},
    "if-none-match": {"name": "If-None-Match", "description": "The ETag of the version that is known."},
}


def describe(api: FastAPI) -> None:
    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _document(api)
        return api.openapi_schema

    api.openapi = document  # type: ignore[method-assign]


def _document(api: FastAPI) -> dict[str, Any]:
    made = get_openapi(title="Hourhand", version=__version__, description=_ABOUT, routes=api.routes)
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    given = [
        one
        for one in vars(models).values()
        if isinstance(one, type) and issubclass(one, models.Given) and one is not models.Given
    ]
    wanted: list[type[BaseModel]] = [*given, models.Problem]
    _, extra = models_json_schema([(one, "validation") for one in wanted], ref_template=_REF)
    schemas.update(extra["$defs"])
    made["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "`hourhand keys create` makes one."},
        "keyHeader": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    made["security"] = [{"key": []}, {"keyHeader": []}]
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            _complete(path, method, operation)
    return made


def _complete(path: str, method: str, operation: dict[str, Any]) -> None:
    name = operation["operationId"]
    free = path == "/healthz"
    if free:
        operation["security"] = []
    body, kind = operation.pop("x-body", None), operation.pop("x-body-type", JSON)
    optional = operation.pop("x-body-optional", False)
    if body is not None:
        # Of many lines each is such an object; the document can only say so in words.
        lines = kind != JSON
        schema = {"type": "string", "description": f"One {body} a line"} if lines else {"$ref": _REF.format(model=body)}
        example = REQUESTS[name]
        if lines:
            example = "".join(f"{json.dumps(one)}\n" for one in example)
        operation["requestBody"] = {"required": not optional, "content": {kind: {"schema": schema, "example": example}}}
    role = operation.setdefault("x-role", "viewer" if method == "get" else "admin")
    if not free:
        operation["description"] = f"{operation.get('description', '')}\n\nFor the role {role}, and those above it.".strip()
    parameters = operation.setdefault("parameters", [])
    for one in parameters:
        if one["name"] in PARAMETERS.get(name, {}):
            one["example"] = PARAMETERS[name][one["name"]]
    if operation.pop("x-remembered", True):
        parameters += [_header(one) for one in _headers(path, method)]
    if not parameters:
        del operation["parameters"]
    _responses(path, method, operation, name, free, body is not None)


def _headers(path: str, method: str) -> list[str]:
    found = [] if method == "get" else ["once"]
    if path.endswith("/jobs/{job_id}"):
        found.append("if-none-match" if method == "get" else "if-match")
    return found


def _header(which: str) -> dict[str, Any]:
    about = _HEADERS[which]
    return {
        "name": about["name"], "in": "header", "required": False, "description": about["description"],
        "schema": {"type": "string", **({"pattern": about["pattern"]} if "pattern" in about else {})},
    }  # fmt: skip


def _responses(path: str, method: str, operation: dict[str, Any], name: str, free: bool, has_body: bool) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    for code, response in responses.items():
        for content in response.get("content", {}).values():
            if code.startswith("2") and name in ANSWERS:
                content["example"] = ANSWERS[name]
            elif code == "503":
                content["example"] = {"status": "unavailable"}
    if name in ("add_job", "enqueue"):
        responses["200"] = {**responses["201"], "description": "It was there already"}
    if name == "show_job":
        responses["304"] = {"description": "The caller has this version"}
    codes = ["401", "403", "503"] if not free else []
    if not free:
        codes += ["404", "422"]
    if name == "why":
        codes.append("409")
    if method != "get":
        codes += ["400", "409", "412", "413", "415"]
    for code in sorted(codes):
        if code not in responses:
            problem = {"type": "about:blank", "title": _PROBLEMS[code], "status": int(code), "detail": "In words, for a person."}
            content = {CONTENT_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}, "example": problem}}
            responses[code] = {"description": _PROBLEMS[code], "content": content}
