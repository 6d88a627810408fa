# shellcheck shell=bash disable=SC2154
# Sourced by gpu_check.sh: equal bits of several layouts whose workers share the one GPU.

# verify NAME CONFIG LAYOUTS SETTING...
verify() {
  local name=$1 config=$2 layouts=$3 settings=()
  shift 3
  for setting in data.synthetic.samples=2000 data.synthetic.eval_samples=100 "$@"; do settings+=(--set "$setting"); done
  part "verify_$name" 60 of_verify "$lockstep" verify "configs/$config.textproto" --layouts "$layouts" --steps 5 \
    --device cuda --allow-shared-gpu "${settings[@]}"
}

share verify
if selected verify; then
  verify gpt_bfloat16 shakespeare_gpt "dp=1; dp=2; pp=2,dp=2; dp=4" data.synthetic.classes=65 precision.compute=BFLOAT16
  verify lenet_tf32 mnist_lenet "dp=1; dp=2" data.synthetic.classes=10 precision.compute=TF32
  # Several virtual replicas at once on one rank, one on each of four.
  verify mlp_joined mnist_mlp "dp=1; dp=4" data.synthetic.classes=10 trainer.virtual_replicas=4 trainer.micro_batch=64
  verify gpt_joined shakespeare_gpt "dp=1; dp=4" data.synthetic.classes=65 precision.compute=BFLOAT16 precision.fused_gelu=true \
    trainer.global_batch=32 trainer.virtual_replicas=4 trainer.micro_batch=32
  verify mlp_float16 mnist_mlp "dp=1; dp=2" data.synthetic.classes=10 precision.compute=FLOAT16
  verify lenet_bfloat16 mnist_lenet "dp=1; dp=2" data.synthetic.classes=10 precision.compute=BFLOAT16
  verify gpt shakespeare_gpt "dp=1; dp=2,shard=optimizer; dp=1,pp=2,schedule=zero_bubble; dp=2,sync=ps,servers=1" data.synthetic.classes=65
fi

# Those that the parts above leave out: each schedule, each way to recompute, servers on GPUs.
share layouts
if selected layouts; then
  verify pipelines shakespeare_gpt "dp=1; dp=1,pp=2,schedule=gpipe; dp=1,pp=2,schedule=interleaved; dp=1,pp=2,recompute=full; pp=2,dp=2,shard=optimizer" data.synthetic.classes=65
  verify recompute shakespeare_gpt "dp=1; dp=1,pp=2,schedule=zero_bubble,recompute=selective; dp=2,recompute=selective" data.synthetic.classes=65 \
    precision.compute=BFLOAT16 precision.fused_gelu=true
  verify gpu_servers shakespeare_gpt "dp=1; dp=2,sync=ps,servers=2,placement=colocated; dp=2,sync=ps,servers=2,placement=colocated,assign=whole; \
dp=2,sync=ps,servers=1,aggregate=host" data.synthetic.classes=65
  verify dedicated_gpu_servers mnist_mlp "dp=2,sync=ps,servers=1; dp=2,sync=ps,servers=2" data.synthetic.classes=10 parallel.server_device=GPU
fi
