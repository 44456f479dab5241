#!/bin/bash
# Mixtral 8x7B on Megatron-LM, as examples/mixtral launches it.
NNODES=${SLURM_NNODES:-8}
SEQ=4096
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --seq-length $SEQ --max-position-embeddings 32768
    --normalization RMSNorm --position-embedding-type rope --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights --hidden-dropout 0.0
    --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm  # every layer
)
PARALLEL_ARGS="--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 \
    --expert-model-parallel-size 8 --use-distributed-optimizer --overlap-grad-reduce"
if [[ $SEQ -gt 8192 ]]; then
    PARALLEL_ARGS+=" --recompute-granularity full --recompute-method block --recompute-num-layers 4"
fi
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py ${MODEL_ARGS[@]} $PARALLEL_ARGS \
    --micro-batch-size 1 --global-batch-size $((NNODES * 32)) --bf16 --lr 1e-4 \
    --tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER_MODEL}
