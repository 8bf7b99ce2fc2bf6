"""Every error of REST has one shape, `{error, fix}`: also those that the framework finds by itself."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from controller.api import schemas

# What any request may be answered, for the OpenAPI description.
RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"model": schemas.Problem, "description": text}
    for code, text in (
        (400, "The request cannot be read."),
        (401, "No valid token."),
        (403, "A token that may only read."),
        (413, "The body is too large."),
        (422, "A parameter or the body is wrong."),
        (429, "Too many requests of this client."),
        (503, "Not now: no leader, or too much is running."),
    )
}


def same_shape(app: FastAPI) -> None:
    """Answer what FastAPI refuses as everything else here is refused."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        found = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
        return _answer(422, "; ".join(found)[:2000], "see /docs for what is expected")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        fix = {
            400: "send JSON in UTF-8",
            404: "see /docs for what there is",
            405: f"allowed: {(error.headers or {}).get('Allow', '')}",
        }
        answer = _answer(error.status_code, str(error.detail), fix.get(error.status_code, ""))
        answer.headers.update(error.headers or {})
        return answer


def _answer(code: int, error: str, fix: str) -> JSONResponse:
    return JSONResponse({"error": error.encode("utf-8", "replace").decode(), "fix": fix}, code)
