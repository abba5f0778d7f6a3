#!/usr/bin/env python3
"""PyTorch's side of tools/bench_ddp.sh: GPT-2's smallest with torch.compile and DistributedDataParallel, in bf16 where autocast has it
so, 16 x 1,024 random tokens a GPU. The last line is tokens/s of all GPUs, by the median step.

    python3 -m torch.distributed.run --standalone --nproc-per-node N tools/ddp_baseline.py STEPS
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

LAYERS, HEADS, CHANNELS, LENGTH, BATCH = 12, 12, 768, 1024, 16
VOCABULARY, PADDED = 50257, 50304  # padded as the trainer does it
WARM_UP = 10                       # steps in which torch.compile and NCCL find their way


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.qkv, self.proj = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)
        self.fc, self.fc_proj = nn.Linear(CHANNELS, 4 * CHANNELS), nn.Linear(4 * CHANNELS, CHANNELS)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(heads.transpose(1, 2).reshape(b, t, c))
        return x + self.fc_proj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(PADDED, CHANNELS), nn.Embedding(LENGTH, CHANNELS)
        self.blocks, self.lnf = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(CHANNELS)
        for table in self.wte, self.wpe:
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(LENGTH, device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, PADDED), targets.view(-1))


def main():
    steps, local_rank = int(sys.argv[1]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(1 + dist.get_rank())
    model = GPT2().cuda()
    if dist.get_world_size() > 1:
        model = DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=True)
    model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    took = []
    for _ in range(WARM_UP + steps):
        tokens, targets = torch.randint(VOCABULARY, (2, BATCH, LENGTH), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size() * BATCH * LENGTH / statistics.median(took[WARM_UP:]):.0f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
