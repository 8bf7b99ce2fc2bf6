"""The field's controller, node manager and coordinator sections, key by key, and what Motor has instead.

Source: PyMotor, motor/config/{controller,node_manager,coordinator,log_config}.py and the 42 user_config.json and
config_sample.json of examples/, as of 2026-06-08 and 2026-07-20.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Foreign:
    """A known key without effect. `keys` are the known keys inside it, each with what Motor has instead."""

    reason: str
    instead: str = ""
    keys: Mapping[str, Foreign | str] = field(default_factory=dict)

    def advice(self, value: object) -> str:
        """What to use instead of what stands in `value`; empty where Motor has nothing like it."""
        if isinstance(value, Mapping):
            inner = [f"{name}: {text}" for name in value if (text := _advice(self.keys.get(name), value[name]))]
            if inner:
                return "use instead of " + ", ".join(inner)
        return f"use {self.instead}" if self.instead else ""


def _advice(known: Foreign | str | None, value: object) -> str:
    if known is None or isinstance(known, str):
        return known or ""
    return known.advice(value).removeprefix("use instead of ").removeprefix("use ")


_LATER = "Motor has no such part yet"
_TIMERS = "motor_controller_config.timers"
_EVENTS = ""  # nothing to set: Motor acts on events

_TLS = ("mgmt_tls_config", "infer_tls_config", "etcd_tls_config", "grpc_tls_config", "observability_tls_config")

_LOGGING = dict.fromkeys(
    (
        "log_max_line_length",
        "log_format",
        "log_date_format",
        "host_log_dir",
        "log_rotation_size",
        "log_rotation_count",
        "log_compress",
        "log_compress_level",
        "log_max_total_size",
        "log_cleanup_interval",
        "log_collector_enabled",
        "third_party_log_levels",
    ),
    "",
)

_STANDBY = dict.fromkeys(
    (
        "enable_master_standby",
        "master_standby_check_interval",
        "master_lock_ttl",
        "master_lock_retry_interval",
        "master_lock_max_failures",
        "master_lock_key",
    ),
    "",
)

_ETCD = dict.fromkeys(("etcd_host", "etcd_port", "etcd_timeout", "etcd_lb_policy", "enable_etcd_persistence"), "")

_PORT_ALLOCATOR = dict.fromkeys(
    ("enable", "scan_range", "probe_timeout_seconds", "remote_check_timeout_seconds", "bind_host"), ""
)

CONTROLLER: Mapping[str, Foreign] = MappingProxyType(
    {
        "api_config": Foreign(
            "listeners have sections of their own",
            "motor_controller_config.rest and .grpc",
            {
                "controller_api_host": "motor_controller_config.rest.host",
                "controller_api_dns": "",
                "controller_api_port": "motor_controller_config.rest.port",
                "observability_api_port": "motor_controller_config.rest.port",
            },
        ),
        "instance_config": Foreign(
            "times have a section of their own",
            _TIMERS,
            {
                "instance_assemble_timeout": f"{_TIMERS}.assemble_timeout",
                "instance_assembler_check_interval": _EVENTS,
                "instance_assembler_cmd_send_interval": _EVENTS,
                "instance_manager_check_interval": _EVENTS,
                "instance_heartbeat_timeout": f"{_TIMERS}.node_timeout",
                "instance_expired_timeout": f"{_TIMERS}.start_unreachable_grace",
                "send_cmd_retry_times": f"{_TIMERS}.max_restarts",
            },
        ),
        "event_config": Foreign(
            "Motor acts on events, and has no coordinator to tell",
            keys=dict.fromkeys(
                ("event_consumer_sleep_interval", "coordinator_heartbeat_interval", "coordinator_set_sync_interval"),
                "",
            ),
        ),
        "fault_tolerance_config": Foreign(
            "failed gangs are always restarted within their budget",
            _TIMERS,
            {
                "enable_fault_tolerance": "",
                "strategy_center_check_interval": _EVENTS,
                "configmap_namespace": "",
                "configmap_prefix": "",
                "k8s_cert_path": "",
                "enable_scale_p2d": "",
                "enable_lingqu_network_recover": "",
                "enable_token_reinference": "",
                "scale_p2d_d_instance_reinit_wait_timeout": "",
            },
        ),
        "observability_config": Foreign(
            "metrics are always served at /metrics", keys={"observability_enable": "", "metrics_ttl": ""}
        ),
        "standby_config": Foreign(_LATER, keys=_STANDBY),
        "etcd_config": Foreign("the state is kept where store says", "motor_controller_config.store", _ETCD),
        "logging_config": Foreign(
            "logs go to stderr, and the service manager keeps them",
            "motor_controller_config.log_level",
            {"log_level": "motor_controller_config.log_level", **_LOGGING},
        ),
        "port_allocator_config": Foreign(
            "ports are leased from ranges", "motor_deploy_config.port_ranges", _PORT_ALLOCATOR
        ),
        "precision_auto_recovery_enabled": Foreign(_LATER),
        **{name: Foreign(_LATER) for name in _TLS},
    }
)

NODEMANAGER: Mapping[str, Foreign] = MappingProxyType(
    {
        "basic_config": Foreign(
            "a node is told what it runs",
            keys={
                "job_name": "motor_deploy_config.deployment_id",
                "role": "role in nodemanager.yaml",
                "model_name": "engine_config.model",
                "engine_type": "engine_type of the engine section",
                "dispatch_capabilities": "",
                "hardware_type": "devices in nodemanager.yaml",
                "heartbeat_interval_seconds": f"{_TIMERS}.heartbeat_interval",
                "device_num": "devices in nodemanager.yaml",
                "parallel_config": "the sizes in engine_config",
                "enable_multi_endpoints": "dp_translation",
                "nnodes": "engine_config.nnodes",
            },
        ),
        "api_config": Foreign(
            "a node opens no port for control: it dials in",
            keys={
                "pod_ip": "address in nodemanager.yaml",
                "host_ip": "address in nodemanager.yaml",
                "node_manager_port": "motor_controller_config.grpc.port",
            },
        ),
        "endpoint_config": Foreign(
            "a process fills the slots it is told",
            keys={
                "endpoint_num": "engine_config.data-parallel-size",
                "base_port": "engine_config.port",
                "service_ports": "motor_deploy_config.port_ranges",
                "mgmt_ports": "",
            },
        ),
        "fault_tolerance_config": Foreign(
            "failed gangs are always restarted within their budget",
            _TIMERS,
            {"enable_fault_tolerance": "", "zmq_pub_port": ""},
        ),
        "single_container_config": Foreign(
            "every manager has a file of its own, on one host too",
            "devices, address and ports in nodemanager.yaml",
            dict.fromkeys(
                (
                    "single_container_flag",
                    "device_num",
                    "device_offset",
                    "base_port_offset",
                    "node_manager_port_offset",
                    "dp_rpc_port",
                    "kv_port",
                    "lookup_rpc_port",
                ),
                "",
            ),
        ),
        "vllm_startup_acceleration_config": Foreign("start-up caches are the engine's", "env and engine_config"),
        "snapshot_config": Foreign(_LATER, keys={"enable_snapshot": "", "snapshot_metadata_path": ""}),
        "logging_config": Foreign(
            "logs go to stderr, and the service manager keeps them", keys={"log_level": "", **_LOGGING}
        ),
        "port_allocator_config": Foreign(
            "ports are leased from ranges", "motor_deploy_config.port_ranges", _PORT_ALLOCATOR
        ),
        **{name: Foreign(_LATER) for name in _TLS},
    }
)

COORDINATOR: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "scheduler_config": (
            "deploy_mode",
            "scheduler_type",
            "enable_pd_separation_fallback_to_hybrid",
            "endpoint_instance_score_weight",
            "kv_affinity_mode",
            "kv_affinity_load_weight",
            "kv_affinity_overlap_credit",
            "kv_affinity_prefill_load_scale",
            "kv_affinity_load_gate_topn",
        ),
        "exception_config": (
            "max_retry",
            "reschedule_enabled",
            "recompute_enabled",
            "recompute_max_retry",
            "transport_max_retry",
            "retry_delay",
            "first_token_timeout",
            "infer_timeout",
            "connect_timeout",
            "upstream_error_body_max_bytes",
        ),
        "inference_workers_config": ("num_workers", "worker_metaserver_base_port"),
        "worker_metaserver_port": (),
        "worker_index": (),
        "request_limit": ("single_node_max_requests", "max_requests"),
        "timeout_config": (
            "request_timeout",
            "connection_timeout",
            "read_timeout",
            "write_timeout",
            "keep_alive_timeout",
        ),
        "api_key_config": (
            "enable_api_key",
            "valid_keys",
            "header_name",
            "key_prefix",
            "skip_paths",
            "encryption_algorithm",
        ),
        "rate_limit_config": (
            "enable_rate_limit",
            "provider",
            "max_requests",
            "window_size",
            "scope",
            "skip_paths",
            "error_message",
            "error_status_code",
            "olc_config_path",
        ),
        "prometheus_metrics_config": (
            "reuse_time",
            "enable_kv_store_metrics",
            "kv_store_metrics_endpoint",
            "kv_store_backend",
            "kv_store_service",
            "kv_store_metrics_port",
            "pool_metrics_enable",
            "pool_metrics_endpoint",
        ),
        "tracer_config": (
            "endpoint",
            "root_sampling_rate",
            "remote_parent_sampled",
            "remote_parent_not_sampled",
            "local_parent_sampled",
            "local_parent_not_sampled",
        ),
        "token_sampling_config": (
            "interval_seconds",
            "logprobs_count",
            "precision_check_enabled",
            "precision_issue_threshold",
            "probe_max_attempts",
            "probe_timeout_seconds",
        ),
        "prefill_kv_event_config": (
            "conductor_service",
            "http_server_port",
            "block_size",
            "endpoint",
            "replay_endpoint",
            "engine_type",
            "model_path",
            "re_register_interval_sec",
        ),
        "api_config": (
            "coordinator_api_host",
            "coordinator_api_dns",
            "coordinator_api_infer_dns",
            "coordinator_api_obs_dns",
            "coordinator_api_infer_port",
            "coordinator_api_mgmt_port",
            "coordinator_obs_port",
        ),
        "deploy_config": (),
        "aigw": (),
        "aigw_model": (),
        "_errors": (),
        "standby_config": tuple(_STANDBY),
        "etcd_config": tuple(_ETCD),
        "logging_config": ("log_level", *_LOGGING),
        "port_allocator_config": tuple(_PORT_ALLOCATOR),
        **dict.fromkeys(_TLS, ()),
    }
)
