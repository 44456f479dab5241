"""GPT-2's block by hand, as transformers writes it with eager attention: a user's module for the torch import."""

from __future__ import annotations

import torch
from torch import nn

HIDDEN, HEADS, VOCAB, LAYERS = 64, 4, 257, 2


class Conv1D(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(*x.shape[:-1], self.bias.shape[0])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(HIDDEN, 3 * HIDDEN), Conv1D(HIDDEN, HIDDEN)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x):
        batch, seq, _ = x.shape
        parts = self.c_attn(x).split(HIDDEN, dim=2)
        q, k, v = (one.view(batch, seq, HEADS, HIDDEN // HEADS).permute(0, 2, 1, 3) for one in parts)
        scores = torch.matmul(q, k.transpose(-1, -2)) / 4.0
        mask = torch.empty(1, 1, seq, seq, dtype=torch.bool, device=x.device)
        scores = torch.where(mask, scores, torch.empty((), device=x.device))
        y = torch.matmul(self.attn_dropout(nn.functional.softmax(scores, dim=-1)), v)
        y = y.permute(0, 2, 1, 3).contiguous().view(batch, seq, HIDDEN)
        return self.resid_dropout(self.c_proj(y))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.c_proj, self.dropout = Conv1D(HIDDEN, 4 * HIDDEN), Conv1D(4 * HIDDEN, HIDDEN), nn.Dropout(0.1)

    def forward(self, x):
        x = self.c_fc(x)
        x = 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0))))
        return self.dropout(self.c_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attn, self.mlp = Attention(), Mlp()

    def forward(self, x):
        x = self.attn(self.ln_1(x)) + x
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, seq: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(seq, HIDDEN)
        self.drop, self.ln_f = nn.Dropout(0.1), nn.LayerNorm(HIDDEN)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids):
        positions = torch.empty(1, ids.shape[1], dtype=torch.int64, device=ids.device)
        x = self.drop(self.wte(ids) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if not self.training:
            return logits
        kept = logits[:, :-1, :].contiguous()
        labels = torch.empty(kept.shape[0] * kept.shape[1], dtype=torch.int64, device=ids.device)
        return nn.functional.cross_entropy(kept.view(-1, VOCAB), labels)


def small(batch: int = 2, seq: int = 32):
    """Return the model and its inputs."""
    return Gpt(seq), (torch.zeros(batch, seq, dtype=torch.int64),)
