"""The connectors that carry KV between engines: what each needs, each fact with its source. A table, no I/O.

Paths without a package are below vLLM-Ascend v0.23.0's `vllm_ascend/distributed/kv_transfer`, those that begin
with `v1/` below vLLM 0.32's `vllm/distributed/kv_transfer/kv_connector`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from engine_launch.model import Role


class Kind(str, Enum):
    """What a connector is for."""

    TRANSFER = "transfer"  # from a prefill engine straight to a decode engine
    STORE = "store"  # to and from a pool, or this engine's own CPU memory or disk
    MULTI = "multi"  # several connectors in one


class Order(str, Enum):
    """Who gets a request first."""

    PREFILL_FIRST = "prefill_first"  # prefill answers with where its KV is; decode gets that with the request
    DECODE_FIRST = "decode_first"  # decode reserves blocks and calls back; then prefill gets the request
    BOTH_AT_ONCE = "both_at_once"
    ONE_ENGINE = "one_engine"  # no pair


# `deploy_mode` of the field's coordinator (A co/router/dispatch.py:53-60).
DISPATCH_MODES: Mapping[str, Order] = MappingProxyType(
    {
        "cpcd_separate": Order.PREFILL_FIRST,
        "pd_separate": Order.DECODE_FIRST,
        "cdp_separate": Order.DECODE_FIRST,
        "pd_disaggregation_single_container": Order.DECODE_FIRST,
        "pd_dual_dispatch": Order.BOTH_AT_ONCE,
        "single_node": Order.ONE_ENGINE,
    }
)

# The mode to name for an order where the file names none.
USUAL_MODE: Mapping[Order, str] = MappingProxyType(
    {
        Order.PREFILL_FIRST: "cpcd_separate",
        Order.DECODE_FIRST: "pd_separate",
        Order.BOTH_AT_ONCE: "pd_dual_dispatch",
        Order.ONE_ENGINE: "single_node",
    }
)


class Listens(str, Enum):
    """Which processes of an engine world open the connector's fixed ports."""

    NOBODY = "nobody"
    WORKERS = "workers"  # every worker, at first port + its rank in the world
    CONSUMERS = "consumers"  # the workers of decode engines alone, at first port + rank without pipeline stages
    MASTERS = "masters"  # each group's master, at first port + data-parallel rank
    PRODUCER_MASTER = "producer_master"  # the master of a prefill engine, at the first port


KV_PORT = "kv_port"  # the field of kv_transfer_config that holds a first port; other port settings are environment


@dataclass(frozen=True)
class Connector:
    """One connector. Defaults are those of a connector that asks for nothing."""

    name: str
    kind: Kind
    engine: str | None = None  # engine of the profile that has it; None: both have
    order: Order | None = None  # None: any order will do, or none is known
    wrong_order: str = ""  # what happens in another order
    context_parallel: bool = True  # works with PCP or DCP > 1
    no_context_parallel: str = ""  # what happens with it
    pcp_with_pp: str = ""  # what happens with both; empty: they go together
    decode_pp: str = ""  # what happens with pipeline stages on the decode side; empty: they work
    prefill_tp_not_below: str = ""  # what happens where prefill's tp is below decode's; empty: it works
    cp_multiple: str = ""  # what happens where prefill's pcp x dcp is no multiple of decode's; empty: it works
    kv_heads_fit: str = (
        ""  # with context parallelism: what happens where KV heads per worker do not fit; empty: nothing
    )
    dcp_fit: str = ""  # what happens where the sides' dcp sizes do not fit; empty: nothing
    both_roles: bool = False  # `kv_both` does what kv_producer and kv_consumer do
    reads_sizes: bool = False  # reads `prefill` and `decode` of kv_connector_extra_config
    demands_sizes: str = ""  # what happens without them; empty: nothing
    listens: Listens = Listens.NOBODY
    port_setting: str = KV_PORT
    first_port: int | None = None  # where the engine puts it without the setting; None: Motor chooses one
    host_env: str = ""  # environment variable with the address that others reach this engine at
    rpc_key: str = ""  # of kv_connector_extra_config: names a local socket, which no two engines of a host may share
    env: Mapping[str, str] = field(default_factory=dict)  # environment that all engines of a deployment have to share


_MC = "vLLM-Ascend v0.23.0 kv_p2p/mooncake_connector.py"
_ML = "vLLM-Ascend v0.23.0 kv_p2p/mooncake_layerwise_connector.py"
_MH = "vLLM-Ascend v0.23.0 kv_p2p/mooncake_hybrid_connector.py"
_HASH_SEED = MappingProxyType({"PYTHONHASHSEED": "0"})  # docs/source/user_guide/feature_guide/kv_pool.md:45-50

_TABLE = (
    Connector(
        "MooncakeConnectorV1",
        Kind.TRANSFER,
        engine="vllm_ascend",
        order=Order.PREFILL_FIRST,
        # With the decode engine first, nobody has told it remote_block_ids yet. v0.18.0: :1000.
        wrong_order=f"the decode engine ends with `assert num_external_tokens == 0` ({_MC}:1849)",
        pcp_with_pp=f"`assert not (self.pp_size > 1 and self.pcp_size > 1)` ({_MC}:2004)",
        decode_pp=f"`assert self._decode_pp_size == 1` ({_MC}:2085)",
        prefill_tp_not_below=f"ValueError, prefill_tp_size must be greater or equal ({_MC}:1982-1986)",
        cp_multiple="`assert (remote_pcp_size * remote_dcp_size) % (pcp_size * dcp_size) == 0` " + f"({_MC}:2723)",
        kv_heads_fit=f"`assert d_node_heads_per_rank % p_node_heads_per_rank == 0` ({_MC}:2727)",
        # :2429-2465: whoever is not exactly kv_producer starts the receiving thread and never sends.
        both_roles=False,
        reads_sizes=True,
        demands_sizes=f'`assert "tp_size" in prefill_parallel_config` ({_MC}:2070-2082)',
        listens=Listens.WORKERS,  # :1651-1657, 2030-2038
    ),
    Connector(
        "MooncakeHybridConnector",
        Kind.TRANSFER,
        engine="vllm_ascend",
        order=Order.PREFILL_FIRST,
        wrong_order=f"the decode engine ends with `assert num_external_tokens == 0` ({_MH}:1386)",
        context_parallel=False,
        no_context_parallel=f"`assert self.pcp_size * self.dcp_size == 1` ({_MH}:1193, 1505)",
        decode_pp=f"`assert self._decode_pp_size == 1` ({_MH}:1601)",
        prefill_tp_not_below=f"ValueError, prefill_tp_size must be greater or equal ({_MH}:1486-1490)",
        reads_sizes=True,
        demands_sizes=f'`assert "tp_size" in prefill_parallel_config` ({_MH}:1586-1597)',
        listens=Listens.WORKERS,  # :1200-1206, 1552-1560
    ),
    Connector(
        "MooncakeLayerwiseConnector",
        Kind.TRANSFER,
        engine="vllm_ascend",
        order=Order.DECODE_FIRST,
        wrong_order=f'the prefill engine ends with KeyError on `params["remote_cached_tokens"]` ({_ML}:990)',
        context_parallel=False,
        no_context_parallel=(
            f"the prefill engine ends with `assert len(selected_p_cp_groups) == len(selected_d_cp_groups)` "
            f"({_ML}:1496; v0.18.0: :1340) once the two sides' groups differ, and a decode engine with PCP with "
            f"`assert prefill_context_parallel_size == 1` ({_ML}:803-806)"
        ),
        both_roles=True,  # asks is_kv_producer and is_kv_consumer, :1359, 1386
        reads_sizes=True,  # up to v0.14 (v0.13.0rc3: mooncake_layerwise_connector.py:899-917); later ones do not ask
        listens=Listens.CONSUMERS,  # :1164-1169, 1386-1397
    ),
    Connector(
        "MooncakeConnector",
        Kind.TRANSFER,
        engine="vllm",
        both_roles=True,  # v1/mooncake/mooncake_connector.py:1260
        listens=Listens.PRODUCER_MASTER,  # the bootstrap server, v1/mooncake/mooncake_connector.py:1282-1286
        port_setting="VLLM_MOONCAKE_BOOTSTRAP_PORT",
        first_port=8998,  # vllm/envs.py:242
    ),
    *(
        Connector(
            name,
            Kind.TRANSFER,
            # The pulling forms: prefill answers, decode reads. The pushing form is of no known dispatch mode.
            order=None if name == "NixlPushConnector" else Order.PREFILL_FIRST,
            wrong_order="the decode engine knows no engine to read from (vLLM 0.32 v1/nixl/pull_scheduler.py:285)",
            dcp_fit="the decode engine refuses its peer (vLLM 0.32 v1/nixl/base_worker.py:937-944, 2427-2434)",
            both_roles=True,
            listens=Listens.MASTERS,  # v1/nixl/base_scheduler.py:76-80, 328
            port_setting="VLLM_NIXL_SIDE_CHANNEL_PORT",
            first_port=5600,  # vllm/envs.py:234
            host_env="VLLM_NIXL_SIDE_CHANNEL_HOST",  # "localhost" by default, vllm/envs.py:233
        )
        for name in ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
    ),
    Connector(
        "AscendStoreConnector",
        Kind.STORE,
        engine="vllm_ascend",
        both_roles=True,
        rpc_key="lookup_rpc_port",  # kv_pool/ascend_store/pool_scheduler.py:1146-1161: a Unix socket's name
        env=_HASH_SEED,
    ),
    Connector(
        "MooncakeConnectorStoreV1",  # the old name of AscendStoreConnector, __init__.py:40-50
        Kind.STORE,
        engine="vllm_ascend",
        both_roles=True,
        rpc_key="mooncake_rpc_port",
        env=_HASH_SEED,
    ),
    Connector("UCMConnector", Kind.STORE, engine="vllm_ascend", both_roles=True),
    Connector("LMCacheAscendConnector", Kind.STORE, engine="vllm_ascend", both_roles=True),
    Connector("RecomputeCPUOffloadConnector", Kind.STORE, engine="vllm_ascend", both_roles=True),
    # vLLM's own, v1/../factory.py:150-250.
    Connector("MooncakeStoreConnector", Kind.STORE, engine="vllm", both_roles=True),
    Connector("LMCacheConnectorV1", Kind.STORE, both_roles=True),
    Connector("LMCacheMPConnector", Kind.STORE, both_roles=True),
    Connector("OffloadingConnector", Kind.STORE, both_roles=True),
    Connector("SimpleCPUOffloadConnector", Kind.STORE, both_roles=True),
    Connector("ExampleConnector", Kind.STORE, both_roles=True),
    Connector("FlexKVConnectorV1", Kind.STORE, both_roles=True),
    Connector("HF3FSKVConnector", Kind.STORE, both_roles=True),
    Connector("HiSparseConnector", Kind.STORE, both_roles=True),
    Connector("MultiConnector", Kind.MULTI, both_roles=True),
)

CONNECTORS: Mapping[str, Connector] = MappingProxyType({connector.name: connector for connector in _TABLE})

# What each side of a pair is: vLLM's KVTransferConfig demands one of the three (vllm/config/kv_transfer.py:106-116).
KV_ROLES: Mapping[Role, str] = MappingProxyType(
    {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer", Role.UNION: "kv_both"}
)


def fits_role(kv_role: str, role: Role, connector: Connector | None) -> bool:
    """True where an engine of this role may say `kv_role`. An unknown connector is taken to know both roles.

    A union engine may use a store in one direction only.
    """
    if role is Role.UNION:
        return kv_role in KV_ROLES.values()
    return kv_role == KV_ROLES[role] or (kv_role == "kv_both" and (connector is None or connector.both_roles))
