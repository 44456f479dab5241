"""Rows of sweeps as their logs have them."""


def sweep_row(**figures: object) -> dict[str, object]:
    """Return the row of a point of a sweep that has a result."""
    one = dict.fromkeys(("tp", "cp", "pp", "dp", "ep", "vpp", "micro_batch", "global_batch", "microbatches", "seq"), 1)
    speed = dict.fromkeys(("step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_s_per_owned_gpu"), 1.0)
    rest = dict.fromkeys(("model_tflops_per_gpu", "mfu", "compute_s", "bubble_s", "peak_memory_bytes"), 0.5)
    machine = {"gpu_memory_bytes": 8e10, "memory_verdict": "fits", "gpus": 1, "ranks": 1, "idle_gpus": 0}
    money = {"usd_per_1t_tokens": None, "usd_owned_per_1t_tokens": 1.0, "kwh_per_1t_tokens": 1.0}
    return {"status": "ok", "reason": "", **one, **speed, **rest, **machine, **money, **figures}
