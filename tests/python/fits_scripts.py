"""Training scripts as people write them, for `stalloc fits`."""

from __future__ import annotations

IMAGES = """
import argparse
import torch
import torch.nn.functional as F
from torch import nn, optim

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(16 * 13 * 13, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        return F.log_softmax(self.fc(torch.flatten(self.dropout(x), 1)), dim=1)

def train(model, device, loader, optimizer, epoch):
    model.train()
    for index, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        print(f"{epoch} {index} {loss.item():.6f}")

def test(model, device, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            prediction = model(data.to(device)).argmax(dim=1, keepdim=True)
            correct += prediction.eq(target.to(device).view_as(prediction)).sum().item()
    print(f"accuracy {correct / len(loader.dataset)}")

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args()
cuda = torch.cuda.is_available() and not args.no_cuda
torch.manual_seed(1)
device = torch.device("cuda" if cuda else "cpu")
data = torch.utils.data.TensorDataset(torch.randn(128, 1, 28, 28), torch.randint(10, (128,)))
loader = torch.utils.data.DataLoader(
    data, args.batch_size, shuffle=True, **({"num_workers": 2, "pin_memory": True} if cuda else {})
)
model = Net().to(device)
optimizer = optim.Adadelta(model.parameters())
for epoch in range(3):
    train(model, device, loader, optimizer, epoch)
    test(model, device, loader)
torch.save(model.state_dict(), "model.pt")
"""

LANGUAGE = """
import os, time
import numpy as np
import torch
from torch import nn

batch_size, block_size, width, heads, layers = 4, 64, 64, 4, 2
device = "cuda"
torch.backends.cuda.matmul.allow_tf32 = True
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)
data = np.arange(4096, dtype=np.uint16) % 256

def get_batch():
    at = torch.randint(len(data) - block_size - 1, (batch_size,))
    rows = [data[i : i + block_size + 1].astype(np.int64) for i in at]
    x = torch.stack([torch.from_numpy(row[:-1]) for row in rows])
    y = torch.stack([torch.from_numpy(row[1:]) for row in rows])
    return (t.pin_memory().to(device, non_blocking=True) for t in (x, y))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        inner = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x):
        b, t, c = x.shape
        parts = self.qkv(self.ln(x)).split(c, 2)
        q, k, v = (y.view(b, t, heads, -1).transpose(1, 2) for y in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(b, t, c)
        return x + self.mlp(x)

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, width), nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(width, 256, bias=False)
        self.wte.weight = self.head.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        print(f"{sum(p.numel() for p in self.parameters())} parameters")

    def forward(self, ids, targets=None):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, nn.functional.cross_entropy(logits.view(-1, 256), targets.view(-1))

model = GPT()
model.to(device)
scaler = torch.amp.GradScaler("cuda", enabled=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
model = torch.compile(model)

@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(2)
    for k in range(2):
        x, y = get_batch()
        with ctx:
            losses[k] = model(x, y)[1].item()
    model.train()
    return losses.mean()

best = 1e9
x, y = get_batch()
for step in range(1000):
    if step % 100 == 0:
        loss = estimate_loss()
        if loss < best:
            best = loss
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(states, "ckpt.pt")
    for micro in range(2):
        with ctx:
            logits, loss = model(x, y)
            loss = loss / 2
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    print(f"iter {step}: loss {loss.item() * 2:.4f}, {torch.cuda.max_memory_allocated() / 2**30}")
"""

RANK = """
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn

def main(rank, size):
    dist.init_process_group("nccl", rank=rank, world_size=size)
    torch.cuda.set_device(rank)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(4, 64, device=rank)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""
