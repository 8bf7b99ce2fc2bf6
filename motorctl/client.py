"""Asking a controller over REST, with the standard library only: start-up time is what operators feel."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from motorctl import https
from motorctl.bearer import authorization, token_option

DEFAULT_CONTROLLER = "http://127.0.0.1:1026"
EXIT_UNREACHABLE = 3
MAX_REDIRECTS = 3

F = TypeVar("F", bound=Callable[..., Any])


def controller_option(command: F) -> F:
    """`--controller URL`, from MOTOR_CONTROLLER or the default REST address; who is asking, and whom to trust."""
    return click.option(
        "--controller",
        "controller",
        envvar="MOTOR_CONTROLLER",
        default=DEFAULT_CONTROLLER,
        show_default=True,
        show_envvar=True,
        help="REST address of the controller; several with commas between them: the next where one does not answer.",
    )(token_option(https.ca_option(command)))


class ControllerError(click.ClickException):
    """The controller cannot be reached or will not answer; the message says what to try."""

    exit_code = EXIT_UNREACHABLE

    def __init__(self, message: str, ask_next: bool = False) -> None:
        super().__init__(message)
        self.ask_next = ask_next  # another of the given controllers may do better, and this one has done nothing


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
    """The answer of the first controller that leads, or sends on to the one that does."""
    failures: list[ControllerError] = []
    stale: Any = None
    for address in filter(None, map(str.strip, controller.split(","))):
        base = address if "://" in address else f"http://{address}"
        try:
            answer = _ask(base.rstrip("/") + path, timeout, body)
            if not answer.headers.get("Motor-Stale-Since"):
                return answer
            stale = stale or answer  # it led once and knows of nobody who does now; another one may
        except ControllerError as error:
            failures.append(error)
            if not error.ask_next:
                break
    if stale is not None:
        return stale
    if not failures:
        raise ControllerError(f"--controller: expected an address, got {controller!r}")
    refused = next((error for error in failures if isinstance(error, ControllerRefused)), None)
    raise refused or ControllerError("\n".join(error.message for error in failures))


def _ask(url: str, timeout: float | None, body: bytes | None) -> Any:
    """Ask `url`, and the leader that a standby names."""
    for _ in range(MAX_REDIRECTS):
        # no proxy: a cluster's controller is never behind the machine's http_proxy
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect(), *https.handlers(url))
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json", **authorization(url)})
            return opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            if error.code not in (307, 308):
                raise _refusal(error) from error
            url = _next(url, error.headers.get("Location", ""))
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise _no_answer(
                url, error, sent=body is not None and not isinstance(error, urllib.error.URLError)
            ) from error
    raise ControllerError(
        f"{url}: sent on {MAX_REDIRECTS} times; the controllers do not agree on who leads", ask_next=True
    )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib would follow without a second look at whom the token goes to, and does not repeat a POST."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _next(url: str, location: str) -> str:
    """Where a standby sends us. ControllerError for what is no address, or would take the token out of TLS."""
    if not location.startswith(("http://", "https://")):
        raise ControllerError(f"{url}: sent on to {location!r}, which is no address", ask_next=True)
    if url.startswith("https://") and not location.startswith("https://"):
        raise ControllerError(
            f"{url}: sent on to {location}, which has no TLS; set `advertise.rest` of that controller to https://",
            ask_next=True,
        )
    return location


def _no_answer(url: str, error: Exception, sent: bool) -> ControllerError:
    reason = getattr(error, "reason", error)
    if why := https.explain(url, reason):
        return ControllerError(why)
    return ControllerError(
        f"no answer from {url}: {reason}. Is motor-controller running there? "
        f"Another address: --controller URL or {'MOTOR_CONTROLLER'}"
        f" (now {os.environ.get('MOTOR_CONTROLLER', 'not set')})."
        + (" The order may have arrived: see `motorctl events`." if sent else ""),
        ask_next=not sent,
    )


def _refusal(error: urllib.error.HTTPError) -> ControllerRefused:
    """The controller's own reason. A standby that knows no leader leaves it to the others."""
    try:
        body = json.load(error)
        text = str(body.get("error") or body.get("detail") or body)
        text += f"\n  {body['fix']}" if body.get("fix") else ""
        return ControllerRefused(text, ask_next=error.code == 503 and body.get("leader") == "")
    except (ValueError, AttributeError):
        return ControllerRefused(f"HTTP {error.code} {error.reason}")
