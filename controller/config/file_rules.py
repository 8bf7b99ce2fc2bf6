"""Rules over the file itself, its engines' options and environment, ports, times: as the reference lists them.

Each check stands where what it needs is known, and names its rule; what one engine forbids is in engine_launch.
"""

from __future__ import annotations

from controller.config.rule_report import StatedRule
from engine_launch.rule import RuleSeverity

_E, _W = RuleSeverity.ERROR, RuleSeverity.WARNING

_KERNEL = "Linux, net.ipv4.ip_local_port_range"
_MEASURED = "measured, vLLM 0.32"


FILE: tuple[StatedRule, ...] = (
    StatedRule("file-object", _E, "The file holds one object."),
    StatedRule("key-once", _E, "A key stands once."),
    StatedRule("key-unknown", _E, "Every key is one of Motor's or one that the field's files carry."),
    StatedRule("key-missing", _E, "engine_type and engine_config are there, and a reason in every override."),
    StatedRule("key-refused", _E, "What would start something else than the file asks for is refused.", "field"),
    StatedRule("key-field", _W, "Keys of the field's files that have no effect are said.", "field"),
    StatedRule("key-misspelt", _W, "motor_nodemanger_config is motor_nodemanager_config.", "field"),
    StatedRule("value-type", _E, 'A value has its key\'s type: "2" and 2.0 are not 2.'),
    StatedRule("value-range", _E, "A value lies within its key's limits."),
    StatedRule("section-engine", _E, "There is at least one engine section."),
    StatedRule("slots-most", _E, "A deployment has at most 100,000 slots of at most 4,096 devices."),
    StatedRule("section-instances", _E, "A role with a number of instances has an engine section."),
    StatedRule("devices-per-node", _E, "A node has the devices that an engine process takes.", "PCP paper"),
    StatedRule("devices-idle", _W, "Devices of a node that no engine process takes stay idle."),
    StatedRule("nodes-per-instance", _E, "An instance has data-parallel-size x nnodes nodes.", "PCP paper"),
)

ENGINE: tuple[StatedRule, ...] = (
    StatedRule("engine-type", _E, "The engine is one that Motor knows."),
    StatedRule("engine-profile", _E, "engine_profile names a profile, of the engine that engine_type says."),
    StatedRule("engine-profile-notes", _W, "What an operator of a version should know is said."),
    StatedRule("option-once", _E, "An option is spelled once, extra_args included.", "argparse: the last one wins"),
    StatedRule("option-size", _E, "Parallel sizes and nnodes are integers of at least 1, without quotes."),
    StatedRule("option-value", _E, "A value has the form that its option takes, and a command line can carry it."),
    StatedRule(
        "option-known",
        _E,
        "The engine has the option (a warning where the list of flags is another version's).",
        "the engine's own parser, engine_launch/flag_lists",
    ),
    StatedRule("option-long", _E, "Motor reads long names only: no abbreviation, no one-dash flag."),
    StatedRule("option-reserved", _E, "What Motor computes is set in an override block only."),
    StatedRule("option-model", _E, "The model is a path or a hub name."),
    StatedRule("option-host", _E, "host is an address, and not one node's where there are several masters."),
    StatedRule("option-host-node", _W, "A node's address as host fits only if that node becomes the master."),
    StatedRule("option-drain", _E, "The drain time is in whole seconds."),
    StatedRule("extra-args-flag", _E, "extra_args begin with a flag."),
    StatedRule("option-guarded", _W, "Options that choose code or files are the nodes' own (docs/security.md)."),
    StatedRule("extra-args-read", _E, "What Motor computes from stands in engine_config."),
    StatedRule("override-option", _E, "override.options are options that Motor keeps for itself."),
    StatedRule("override-rule", _E, "override.rules are ids of this list."),
    StatedRule("override-shown", _W, "Every option of an override is said."),
    StatedRule("override-unused", _W, "An override that changes nothing is a left-over."),
    StatedRule("env-name", _E, "A name of the environment has letters, digits and underscores."),
    StatedRule("env-reserved", _E, "What changes the topology, or is Motor's own, is not set."),
    StatedRule("env-value", _E, "A value is one line of text or a number."),
    StatedRule(
        "env-log-level", _E, "The engine logs at INFO or DEBUG: stages are read from its log.", "vLLM, logger.py"
    ),
    StatedRule("env-guarded", _W, "Names by which code is found are the nodes' own (docs/security.md)."),
    StatedRule("env-node", _W, "One value for all nodes replaces what each node would fill in."),
)

PORTS: tuple[StatedRule, ...] = (
    StatedRule("port-range", _E, "A range is [first, last], 1024 to 65535, and holds the option's first port."),
    StatedRule("port-usable", _E, "A port is an integer from 1024 to 65535."),
    StatedRule("port-space", _E, "There is room for the default range of each use."),
    StatedRule("port-overlap", _E, "Ranges of different uses share no port."),
    StatedRule("port-kv-overlap", _W, "KV ports of two roles would collide on one host."),
    StatedRule("port-ephemeral", _W, "A range in the kernel's ephemeral ports may be taken by a connection.", _KERNEL),
)

TIMES: tuple[StatedRule, ...] = (
    StatedRule("controller-loopback", _E, "Beyond loopback without TLS (REST: and tokens) needs insecure."),
    StatedRule("controller-insecure", _W, "insecure has no effect beside TLS and tokens."),
    StatedRule("tls-file", _E, "cert, key, ca and revoked_file of tls are files."),
    StatedRule("access-loopback", _W, "loopback_read says something only where tokens are asked for."),
    StatedRule("store-kind", _E, "Keys of store belong to its kind."),
    StatedRule("store-endpoints", _E, "etcd has endpoints, https://host:port, each once."),
    StatedRule("store-plain", _E, "etcd beyond loopback without TLS needs insecure."),
    StatedRule("store-pairs", _E, "user and password_file, cert and key stand together; TLS files need https://."),
    StatedRule("store-files", _W, "password_file, ca, cert and key are files."),
    StatedRule("store-lease", _E, "lease_seconds / 4 + 2 x request_seconds + lease_seconds / 10 <= lease_seconds."),
    StatedRule("advertise-address", _E, "advertise.grpc is host:port, advertise.rest a URL, https:// with tls."),
    StatedRule("advertise-missing", _W, "With etcd and every address listened on, advertise says where it is."),
    StatedRule("controller-ports", _E, "REST and gRPC have different ports."),
    StatedRule("timers-heartbeat", _E, "node_timeout is at least three heartbeats."),
    StatedRule(
        "timers-nest",
        _E,
        "refusal_backoff <= refusal_backoff_max, restart_backoff <= restart_backoff_max, stop_grace <= stop_timeout, "
        "node_timeout <= start_unreachable_grace <= start_timeout.",
    ),
    StatedRule("timers-self-fence", _E, "self_fence is 0 or more than three node timeouts."),
    StatedRule("timers-stop", _E, "stop_timeout is more than the longest drain and 20 s.", _MEASURED),
    StatedRule("health-samples", _E, "canary_deadline is at least two sample_intervals."),
    StatedRule("health-nest", _E, "warm_up_deadline and both verdict times are at least canary_deadline."),
    StatedRule("health-reach", _W, "warm_up_deadline is less than start_timeout, or it is never reached."),
    StatedRule("health-canary", _W, "Without the canary a frozen engine is not found."),
    StatedRule("health-attempts", _W, "health_collector_timeout_retry_attempts is fixed.", "field"),
)
