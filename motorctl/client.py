"""Asking a controller over REST, with the standard library only: start-up time is what operators feel."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

DEFAULT_CONTROLLER = "http://127.0.0.1:1026"
EXIT_UNREACHABLE = 3

F = TypeVar("F", bound=Callable[..., Any])


def controller_option(command: F) -> F:
    """`--controller URL`, from MOTOR_CONTROLLER or the default REST address."""
    return click.option(
        "--controller",
        "controller",
        envvar="MOTOR_CONTROLLER",
        default=DEFAULT_CONTROLLER,
        show_default=True,
        show_envvar=True,
        help="REST address of the controller.",
    )(command)


class ControllerError(click.ClickException):
    """The controller cannot be reached or will not answer; the message says what to try."""

    exit_code = EXIT_UNREACHABLE


class ControllerRefused(ControllerError):
    """The controller answered, and its answer is an error."""

    exit_code = 1


def get(controller: str, path: str, timeout: float = 10.0) -> Any:
    """The JSON answer to GET `path`. ControllerError with the controller's own reason."""
    with _open(controller, path, timeout) as answer:
        return json.load(answer)


def post(controller: str, path: str, body: dict[str, Any], timeout: float = 10.0) -> Any:
    """The JSON answer to POST `path`. ControllerError with the controller's own reason."""
    with _open(controller, path, timeout, json.dumps(body).encode()) as answer:
        return json.load(answer)


def stream(controller: str, path: str) -> Iterator[bytes]:
    """The body of GET `path` as it arrives."""
    with _open(controller, path, None) as answer:
        while chunk := answer.read1(65536):
            yield chunk


def _open(controller: str, path: str, timeout: float | None, body: bytes | None = None) -> Any:
    base = controller if "://" in controller else f"http://{controller}"
    url = base.rstrip("/") + path
    # no proxy: a cluster's controller is never behind the machine's http_proxy
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        return opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        raise ControllerRefused(_reason(error)) from error
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ControllerError(
            f"no answer from {url}: {reason}. Is motor-controller running there? "
            f"Another address: --controller URL or {'MOTOR_CONTROLLER'}"
            f" (now {os.environ.get('MOTOR_CONTROLLER', 'not set')})."
        ) from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        body = json.load(error)
        text = str(body.get("error") or body.get("detail") or body)
        return text + (f"\n  {body['fix']}" if body.get("fix") else "")
    except (ValueError, AttributeError):
        return f"HTTP {error.code} {error.reason}"
