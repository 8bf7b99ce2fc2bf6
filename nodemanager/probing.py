"""Proof of life by another path: this node asks an API server of its group for one token, for the controller."""

from __future__ import annotations

from collections.abc import Iterable

from motor_rpc import control_pb2 as pb
from motor_rpc.completion_probe import ask_completion
from motor_rpc.http_ask import Place

from engine_launch.health import API_KEY_FLAG, canary_prompt, virtual_transfer_params, words_of
from engine_launch.profiles import takes_text_only
from nodemanager.records import StartRecord

DEADLINE_SECONDS = 30.0


async def probe(request: pb.ProbeRequest, records: Iterable[StartRecord]) -> pb.ProbeReport:
    """`records` are this node's starts: all processes of a group have the same key and the same connector, so what the
    API server wants beside the model's name stands there. Never raises, whatever is asked and whatever the server does.
    """
    own = next((one for one in records if request.host in (one.master_addr, one.api_host)), None)
    params = virtual_transfer_params(own.argv, own.role) if own else None
    more: dict[str, object] = {"kv_transfer_params": params} if params else {}
    if own and takes_text_only(own.engine_profile):
        more["prompt"] = canary_prompt(0, request.prompt_tokens, text=True)
    keys = words_of(own.argv, API_KEY_FLAG) if own else []
    found = await ask_completion(
        Place(request.host, request.port, request.tls),
        request.served_model,
        request.prompt_tokens,
        request.deadline_seconds or DEADLINE_SECONDS,
        api_key=keys[0] if keys else own.env.get("VLLM_API_KEY", "") if own else "",
        more=more,
    )
    return pb.ProbeReport(request_id=request.request_id, ok=found.ok, detail=found.detail)
