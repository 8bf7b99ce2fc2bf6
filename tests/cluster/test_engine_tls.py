"""Engines that serve https: readiness, canary and proof of life follow the engine's own option."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx

from motorctl.certs_make import new_authority
from tests.cluster.deployment import Deployment, engine_section


def test_an_engine_that_serves_https_is_asked_over_https(deploy: Callable[..., Deployment], tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    certificate = new_authority(folder, "test").controller(folder, ("127.0.1.1",), "engine", force=False)
    files = {"ssl-certfile": str(certificate), "ssl-keyfile": str(certificate.with_suffix(".key"))}
    section = engine_section(**files)
    section["health_check_config"] = {"canary_interval": 1.0, "canary_deadline": 3.0, "sample_interval": 1.0}
    d = deploy({"motor_engine_union_config": section})
    d.start_controller()
    d.start_nodes(2)
    d.wait_ready()  # not without /health and a first canary
    (endpoint,) = d.get("/v1/instances")
    assert endpoint["url"].startswith("https://127.0.1.1:")
    trusted = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    assert httpx.get(endpoint["url"] + "/v1/models", verify=trusted, trust_env=False).status_code == 200

    d.nodes["n1"].end(signal.SIGKILL)
    d.wait(lambda: d.node_states()["n1"] == "unreachable", "n1 to be out of sight")
    said = d.wait(lambda: [e for e in d.events("union-0/0") if e["code"] == "silent_but_serving"], "proof of life")
    assert "asked by node n2: https://127.0.1.1:" in said[0]["sentence"], said
    assert d.group()["generation"] == endpoint["generation"]
