"""Keys that the field's files carry and that are not in schema.py: without effect, misspelt, or refused.

Whatever is in neither place is unknown, and an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_K8S = "it is for Kubernetes; Motor's nodes are plain machines"
_LATER = "Motor has no such part yet"

_DEPLOY: Mapping[str, str] = MappingProxyType(
    {
        "image_name": _K8S,
        "job_id": "use deployment_id",
        "hardware_type": "a node knows its own devices",
        "weight_mount_path": "models are found by each node, below its model_roots",
        "deploy_mode": _K8S,
        "tls_config": _LATER,
    }
)

_CONTROLLER: Mapping[str, str] = MappingProxyType(
    {
        "api_config": "use motor_controller_config.rest and .grpc",
        "instance_config": "use motor_controller_config.timers",
        "event_config": _LATER,
        "fault_tolerance_config": _LATER,
        "observability_config": "metrics are always served at /metrics",
        "standby_config": _LATER,
        "etcd_config": _LATER,
        "logging_config": "use motor_controller_config.log_level",
        "port_allocator_config": "use motor_deploy_config.port_ranges",
        "precision_auto_recovery_enabled": _LATER,
    }
)

_ENGINE: Mapping[str, str] = MappingProxyType(
    {
        "dispatch_profile": "Motor has no router yet",
        "enable_multi_endpoints": "one engine process fills one slot",
        "motor_nodemanger_config": "a node's settings stand in its own nodemanager.yaml",
        "motor_nodemanager_config": "a node's settings stand in its own nodemanager.yaml",
    }
)

_TOP: Mapping[str, str] = MappingProxyType(
    {
        "motor_coordinator_config": "it is kept, but Motor has no router yet",
        "kv_cache_store_config": _LATER,
        "kv_conductor_config": _LATER,
        "motor_container_snapshot_config": _LATER,
    }
)

# Misspelt in the field's own files.
MISSPELT: Mapping[str, str] = MappingProxyType({"motor_nodemanger_config": "motor_nodemanager_config"})

# Where an engine section stands in for which role.
ENGINE_SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "motor_engine_prefill_config": "prefill",
        "motor_engine_decode_config": "decode",
        "motor_engine_union_config": "union",
    }
)

# Known, and refused: ignoring them would start something else than the operator asked for.
REFUSED: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("", "motor_engine_encode_config"): "encode instances are not supported yet; remove the section",
        ("motor_deploy_config", "e_instances_num"): "encode instances are not supported yet; remove the key",
        ("motor_deploy_config", "single_e_instance_pod_num"): "encode instances are not supported yet",
        ("motor_deploy_config", "e_pod_npu_num"): "encode instances are not supported yet; remove the key",
        **{
            (
                section,
                "model_config",
            ): "it was replaced in the field long ago; move its keys into engine_config"
            for section in ENGINE_SECTIONS
        },
    }
)

WITHOUT_EFFECT: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "": _TOP,
        "motor_deploy_config": _DEPLOY,
        "motor_controller_config": _CONTROLLER,
        **dict.fromkeys(ENGINE_SECTIONS, _ENGINE),
    }
)
