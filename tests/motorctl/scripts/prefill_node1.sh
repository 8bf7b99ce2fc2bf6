#!/bin/sh
# Second of two prefill nodes: DeepSeek-V3.1 W8A8 on Atlas A3, sixteen devices each.
source /usr/local/Ascend/ascend-toolkit/set_env.sh

nic_name="eth0"
local_ip=$(ip -4 -o addr show dev "$nic_name" | awk '{print $4}' | cut -d/ -f1)
MODEL=/weights/DeepSeek-V3.1-w8a8
TP=16

export HCCL_IF_IP=$local_ip
export GLOO_SOCKET_IFNAME=$nic_name
export TP_SOCKET_IFNAME=$nic_name
export HCCL_SOCKET_IFNAME=$nic_name
export HCCL_BUFFSIZE=768
export OMP_PROC_BIND=false
export OMP_NUM_THREADS=1
export VLLM_ASCEND_ENABLE_FLASHCOMM1=1
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export HCCL_OP_EXPANSION_MODE="AIV"
export VLLM_USE_V1=1
export TASK_QUEUE_ENABLE=1
export LD_LIBRARY_PATH=/usr/local/lib:$LD_LIBRARY_PATH

nohup vllm serve "$MODEL" \
  --host 0.0.0.0 \
  --port 8004 \
  --decode-context-parallel-size 8 \
  --prefill-context-parallel-size 2 \
  --cp-kv-cache-interleave-size 128 \
  --tensor-parallel-size ${TP} \
  --enable-expert-parallel \
  --quantization ascend \
  --enforce-eager \
  --served-model-name deepseek_v3 \
  --seed 1024 \
  --no-enable-chunked-prefill \
  --no-enable-prefix-caching \
  --max-num-seqs 1 \
  --max-model-len 136000 \
  --max-num-batched-tokens 136000 \
  --block-size 128 \
  --trust-remote-code \
  --gpu-memory-utilization 0.80 \
  --nnodes 2 \
  --headless \
  --node-rank 1 \
  --master-addr 192.0.2.10 \
  --master-port 7001 \
  --speculative-config '{"num_speculative_tokens": 3, "method": "deepseek_mtp"}' \
  --kv-transfer-config '{
    "kv_connector": "MooncakeConnectorV1",
    "kv_role": "kv_producer",
    "kv_port": "30000",
    "engine_id": "0",
    "kv_connector_extra_config": {
      "use_ascend_direct": true,
      "prefill": {"dp_size": 1, "tp_size": 16},
      "decode": {"dp_size": 1, "tp_size": 16}
    }
  }' > prefill.log 2>&1 &
