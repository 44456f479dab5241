"""Measured runs for tests of `clustersim validate`."""

import csv


def said(text):
    """Return {name: value} of `name=value; name=value`."""
    return dict(part.split("=", 1) for part in text.split("; ") if part)


ROW = said(
    "id=MINE-1; gpu=a100-sxm-80gb; num_gpus=8; gpus_per_node=8; nic_gbps_per_gpu=200; nvlink_domain=8; "
    "framework=Megatron-LM; model=GPT-1.3B; layers=4; hidden=1024; ffn_hidden=4096; heads=16; kv_heads=16; seq=1024; "
    "vocab=50257; global_batch=16; micro_batch=2; tp=2; pp=2; vpp=1; dp=2; cp=1; ep=; sequence_parallel=0; "
    "zero_stage=0; recompute=full; precision=fp16; flash_attention=0; overlap_grad_reduce=; overlap_param_gather=; "
    "overlap_tp=; overlap_p2p=; sec_per_iter=0.1; year=2021; source=my notes; original_interconnect=; "
    "original_precision="
)


def write(path, *changes, names=tuple(ROW), bom=False):
    """Write a CSV with a row for each dict of changes to ROW."""
    with path.open("w", encoding="utf-8-sig" if bom else "utf-8", newline="") as file:
        table = csv.DictWriter(file, names, extrasaction="ignore")
        table.writeheader()
        for change in changes or ({},):
            table.writerow({**ROW, **change})
    return path
