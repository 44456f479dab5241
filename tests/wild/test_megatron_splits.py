"""Splits that Megatron-Core's own checks accept are refused nowhere for legality.

The checks are those of NVIDIA/Megatron-LM d98e8a6: training/arguments.py (validate_args), core/transformer/transformer_config.py
and model_parallel_config.py (__post_init__), core/parallel_state.py (initialize_model_parallel), core/pipeline_parallel/
schedules.py, core/tensor_parallel and moe_layer.py (what must divide evenly).
"""

import random

import pytest
import yaml

from clustersim.config.yaml import parse
from clustersim.parallel.load import build
from clustersim.schedules import check as schedules

MODULES = ["core_attn", "layernorm", "mlp", "mla_up_proj", "moe", "moe_act", "shared_experts"]


def drawn(rng):
    """Return random arguments of Megatron-LM by name, and the number of GPUs."""
    pick = rng.choice
    heads = pick([8, 12, 16, 24, 32, 40, 64, 96])
    a = {
        "num_layers": rng.randint(1, 24) * pick([1, 2, 4]),
        "hidden_size": heads * pick([64, 128]),
        "num_attention_heads": heads,
        "ffn_hidden_size": pick([1024, 1536, 4096, 11008, 14336]),
        "vocab_size": pick([32000, 50257, 128256]),
        "seq_length": pick([512, 1024, 4096, 8192, 6144]),
        "max_position_embeddings": 8192,
        "micro_batch_size": pick([1, 1, 2, 4]),
        "tensor_model_parallel_size": pick([1, 1, 2, 4, 8]),
        "pipeline_model_parallel_size": pick([1, 1, 2, 3, 4, 6, 8, 16]),
        "context_parallel_size": pick([1, 1, 1, 2, 4]),
        "data_parallel_size": pick([1, 2, 3, 4, 8, 16]),
        "sequence_parallel": pick([True, False]),
        "use_distributed_optimizer": pick([True, False]),
        "bf16": True,
    }
    if pick([True, False]):
        a["num_query_groups"] = pick([d for d in range(1, heads + 1) if heads % d == 0])
    if pick([True, False, False]):
        a["multi_latent_attention"], a["q_lora_rank"] = True, pick([None, 512])
        a.pop("num_query_groups", None)
    if a["context_parallel_size"] > 1:
        a["cp_comm_type"] = pick(["p2p", "all_gather"])
    if pick([True, False]):
        mixture(rng, a)
    chunks(rng, a)
    recompute = pick(["none", "selective", "full"])
    if recompute == "full":
        a |= {"recompute_granularity": "full", "recompute_method": pick(["block", "uniform"])}
        a["recompute_num_layers"] = rng.randint(1, 4)
    elif recompute == "selective":
        a |= {"recompute_granularity": "selective", "recompute_modules": rng.sample(MODULES, rng.randint(1, 3))}
    a["overlap_grad_reduce"] = pick([True, False])
    a["overlap_param_gather"] = a["overlap_grad_reduce"] and a["use_distributed_optimizer"] and pick([True, False])
    if a["use_distributed_optimizer"] and pick([True, False, False, False]):
        a["num_distributed_optimizer_instances"] = pick([2, 4])
    a["global_batch_size"] = a["micro_batch_size"] * a["data_parallel_size"] * rng.randint(1, 40)
    return a


def mixture(rng, a):
    """Add a mixture of experts."""
    pick = rng.choice
    a["num_experts"] = pick([4, 8, 16, 60, 64, 128])
    a["moe_router_topk"] = pick([1, 2, 4])
    a["moe_ffn_hidden_size"] = pick([512, 768, 1408])
    a["expert_model_parallel_size"] = pick([1, 2, 4, 8, 16])
    a["expert_tensor_parallel_size"] = pick([1, a["tensor_model_parallel_size"]])
    if pick([True, False]):
        a["moe_shared_expert_intermediate_size"] = pick([512, 2048])


def chunks(rng, a):
    """Add how layers are divided over stages."""
    pick = rng.choice
    if pick([True, False]):
        a[pick(["account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"])] = True
    elif pick([True, False]):
        a["decoder_first_pipeline_num_layers"] = rng.randint(1, 8)
        if pick([True, False]):
            a["decoder_last_pipeline_num_layers"] = rng.randint(1, 8)
    if pick([True, False, False, False]):
        stages = a["pipeline_model_parallel_size"] * pick([1, 2])
        cuts = (
            sorted(rng.choices(range(1, a["num_layers"]), k=stages - 1)) if a["num_layers"] > 1 else [1] * (stages - 1)
        )
        counts = [end - start for start, end in zip([0, *cuts], [*cuts, a["num_layers"]], strict=True)]
        a["pipeline_model_parallel_layout"] = "E" + "|".join("t" * count for count in counts) + "L"
        for name in [name for name in a if name.startswith(("account_for", "decoder_"))]:
            a.pop(name)
    elif pick([True, False]):
        a["virtual_pipeline_model_parallel_size"] = pick([1, 2, 2, 3, 4])
        if pick([True, False]):
            a["microbatch_group_size_per_vp_stage"] = rng.randint(1, 24)


def accepted(a):
    """Return whether Megatron-Core's checks accept the arguments."""
    tp, pp, cp, dp = (a[f"{name}_parallel_size"] for name in ("tensor_model", "pipeline_model", "context", "data"))
    experts, ep, etp = (
        a.get("num_experts"),
        a.get("expert_model_parallel_size", 1),
        a.get("expert_tensor_parallel_size", tp),
    )
    first, last = a.get("decoder_first_pipeline_num_layers"), a.get("decoder_last_pipeline_num_layers")
    vpp, layers, layout = (
        a.get("virtual_pipeline_model_parallel_size", 1),
        a["num_layers"],
        a.get("pipeline_model_parallel_layout"),
    )
    vpp = (layout.count("|") + 1) // pp if layout else vpp
    counted = layers + sum(a.get(f"account_for_{end}_in_pipeline_split", False) for end in ("embedding", "loss"))
    groups, microbatches = (
        a.get("num_query_groups", a["num_attention_heads"]),
        a["global_batch_size"] // (a["micro_batch_size"] * dp),
    )
    sp = a["sequence_parallel"] and tp > 1
    instances, modules = a.get("num_distributed_optimizer_instances", 1), a.get("recompute_modules", ())
    middle = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    rules = [
        a["num_attention_heads"] % tp == 0,
        "multi_latent_attention" in a or groups % tp == 0 or tp % groups == 0,
        a["ffn_hidden_size"] % tp == 0,
        cp == 1 or a["seq_length"] % (2 * cp) == 0,
        not sp or a["seq_length"] % (tp * cp) == 0,
        vpp == 1 or pp > 1,
        bool(experts) or ep == 1,
        not experts or (experts % ep == 0 and a["moe_router_topk"] <= experts and tp * cp * dp % (ep * etp) == 0),
        not experts or tp == 1 or sp,  # moe_layer.py raises in training
        not experts
        or (a["moe_ffn_hidden_size"] % etp == 0 and a.get("moe_shared_expert_intermediate_size", tp) % tp == 0),
        a.get("recompute_granularity") != "full" or a["recompute_num_layers"] <= max(layers // pp, 1),
        "mla_up_proj" not in modules or "multi_latent_attention" in a,
        "moe_act" not in modules or bool(experts),
        dp * cp % instances == 0 and (not experts or tp * cp * dp // (ep * etp) % instances == 0),
    ]
    if layout:
        rules.append(all(layout.split("|")))
    elif first is None:
        rules.append(counted % (pp * vpp) == 0)
    else:
        rules.append(middle >= 0 and rest >= 0 and bool(rest) == bool(middle))
        rules.append(all((one or 0) % vpp == 0 for one in (first, last)))
        rules.append(middle <= 0 or rest % (middle * vpp) == 0)
        rules.append(pp > 1)
    if vpp > 1:
        size = a.get("microbatch_group_size_per_vp_stage", pp)
        left = microbatches % size
        rules.append(pp <= size <= microbatches and (left == 0 or left >= pp))
    return all(rules)


def splits(seed, count):
    rng = random.Random(seed)
    while count:
        one = drawn(rng)
        if accepted(one):
            count -= 1
            yield one


def placed(a):
    """Return the job on as many GPUs as its split needs, and prove that there is a schedule for it."""
    job = build(parse(yaml.safe_dump({"name": "drawn", **a}), "w.yaml"))
    split = job.parallelism
    job = job.place(split.lanes * int(split.dp), 8)
    schedules.load(split.schedule, split.pp, job.microbatches, split.vpp)
    return job


@pytest.mark.parametrize("seed", range(4))
def test_what_megatron_core_accepts_is_placed(seed):
    for one in splits(seed, 60):
        job = placed(one)
        assert job.parallelism.tp == one["tensor_model_parallel_size"]


def test_a_pipeline_needs_its_schedule():
    """With virtual stages Megatron runs the interleaved schedule; nothing else needs to say so."""
    one = next(a for a in splits(1, 400) if a.get("virtual_pipeline_model_parallel_size", 1) > 1)
    assert placed(one).parallelism.schedule.startswith("interleaved")
