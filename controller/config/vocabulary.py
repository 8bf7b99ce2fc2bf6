"""Keys that the field's files carry and that are not in the schema: without effect, misspelt, or refused.

Three classes: keys of the schema; keys listed here, one warning each with what to use instead; all others are
unknown, and errors. Inside a section without effect nothing is unknown: a slip of the pen there changes nothing.
The coordinator's section is the exception, since Motor checks what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from controller.config.vocabulary_sections import CONTROLLER, COORDINATOR, NODEMANAGER, Foreign

_K8S = "it is for Kubernetes; Motor's nodes are plain machines"
_LATER = "Motor has no such part yet"
_NODE_FILE = "a node's settings stand in its own nodemanager.yaml"
_ENCODE = "encode instances are not supported yet"

_DEPLOY: Mapping[str, Foreign] = MappingProxyType(
    {
        "image_name": Foreign(_K8S),
        "job_id": Foreign("it is a Kubernetes namespace too", "motor_deploy_config.deployment_id"),
        "hardware_type": Foreign("a node knows its own devices", "devices in nodemanager.yaml"),
        "weight_mount_path": Foreign("models are found by each node", "model_roots in nodemanager.yaml"),
        "deploy_mode": Foreign(_K8S),
        "tls_config": Foreign(_LATER, "a trusted network, or a tunnel"),
        "env_path": Foreign("the file is not read", "env of each engine section: copy its variables there"),
        "storage": Foreign(_K8S),
        "dshm_size": Foreign(_K8S),
        "enable_pd_heterogeneous": Foreign("the section says which role runs which engine", "role in nodemanager.yaml"),
        "pd_heterogeneous_label_key": Foreign(_K8S, "role in nodemanager.yaml"),
        "pd_heterogeneous_prefill_label_value": Foreign(_K8S, "role in nodemanager.yaml"),
        "pd_heterogeneous_decode_label_value": Foreign(_K8S, "role in nodemanager.yaml"),
    }
)

_ENGINE: Mapping[str, Foreign] = MappingProxyType(
    {
        "dispatch_profile": Foreign("Motor has no router yet"),
        "enable_multi_endpoints": Foreign("one engine process fills one slot", "dp_translation"),
        "motor_nodemanger_config": Foreign(_NODE_FILE, keys=NODEMANAGER),
        "motor_nodemanager_config": Foreign(_NODE_FILE, keys=NODEMANAGER),
    }
)

_TOP: Mapping[str, Foreign] = MappingProxyType(
    {
        "version": Foreign("it is the version of the field's format"),
        "motor_coordinator_config": Foreign(
            "it is kept, and its dispatch mode is checked against the KV connector; Motor has no router yet"
        ),
        "kv_cache_store_config": Foreign(_LATER, "a store that runs by itself, named in kv-transfer-config"),
        "kv_cache_pool_config": Foreign(_LATER, "a store that runs by itself, named in kv-transfer-config"),
        "kv_conductor_config": Foreign(_LATER, "a conductor that runs by itself"),
        "motor_container_snapshot_config": Foreign(_LATER),
    }
)

# For editors: it names a schema and says nothing about the deployment. No warning.
EDITOR_KEY = "$schema"

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

# How the reference names all of them.
ANY_ENGINE = "motor_engine_*_config"

# Known, and refused: ignoring them would start something else than the operator asked for. Values say what to do.
REFUSED: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("", "motor_engine_encode_config"): f"{_ENCODE}; remove the section",
        ("motor_deploy_config", "e_instances_num"): f"{_ENCODE}; remove the key",
        ("motor_deploy_config", "single_e_instance_pod_num"): f"{_ENCODE}; remove the key",
        ("motor_deploy_config", "e_pod_npu_num"): f"{_ENCODE}; remove the key",
        **dict.fromkeys(
            ((section, "model_config") for section in ENGINE_SECTIONS),
            "it was replaced in the field long ago; move its keys into engine_config",
        ),
    }
)

WITHOUT_EFFECT: Mapping[str, Mapping[str, Foreign]] = MappingProxyType(
    {
        "": _TOP,
        "motor_deploy_config": _DEPLOY,
        "motor_controller_config": CONTROLLER,
        **dict.fromkeys(ENGINE_SECTIONS, _ENGINE),
    }
)

# motor_coordinator_config: its groups, and the keys of the group that Motor checks.
COORDINATOR_GROUPS: Mapping[str, tuple[str, ...]] = COORDINATOR
CHECKED_GROUP = "scheduler_config"
