#!/bin/bash
# The decode node of the same deployment.
NODE_IP=192.0.2.12
export HCCL_IF_IP=$NODE_IP GLOO_SOCKET_IFNAME=eth0 TP_SOCKET_IFNAME=eth0 HCCL_SOCKET_IFNAME=eth0
export HCCL_BUFFSIZE=1024 OMP_NUM_THREADS=1 HCCL_OP_EXPANSION_MODE=AIV

CONFIG="{
  \"kv_connector\": \"MooncakeConnectorV1\", \"kv_role\": \"kv_consumer\", \"kv_port\": \"30200\",
  \"engine_id\": \"${ENGINE_ID:-1}\",
  \"kv_connector_extra_config\": {\"use_ascend_direct\": true,
    \"prefill\": {\"dp_size\": 1, \"tp_size\": 16}, \"decode\": {\"dp_size\": 1, \"tp_size\": 16}}
}"
ARGS=(
  --host 0.0.0.0 --port 8004
  --api-server-count 1
  # One data-parallel rank: these say the defaults.
  --data-parallel-size 1 --data-parallel-size-local 1 --data-parallel-start-rank 0
  --data-parallel-address "$NODE_IP" --data-parallel-rpc-port 5980
  -tp 16 -dcp 1
  --enable-expert-parallel --quantization ascend --trust-remote-code --seed=1024 --no-enable-prefix-caching
  --served-model-name deepseek_v3
  --block-size 128 --max-model-len 136000 --max-num-batched-tokens 128 --max-num-seqs 4
  --gpu-memory-utilization=0.96
)
vllm serve /weights/DeepSeek-V3.1-w8a8 "${ARGS[@]}" \
  --additional-config.recompute_scheduler_enable true \
  --compilation-config.cudagraph_mode FULL_DECODE_ONLY \
  --compilation-config.cudagraph_capture_sizes '[1, 2, 4]' \
  --kv-transfer-config "$CONFIG" | tee decode.log
