"""Trains a graph network of torch_geometric on batches of graphs of every size.

python graphs.py
"""

from __future__ import annotations

import argparse

import torch
from memory import print_memory
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv, global_mean_pool

CHANNELS, HEADS, CLASSES = 256, 4, 10


class Network(torch.nn.Module):
    """Attention over neighbours, some layers of it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            GATv2Conv(CHANNELS, CHANNELS // HEADS, heads=HEADS) for _ in range(layers)
        )
        self.head = torch.nn.Linear(CHANNELS, CLASSES)

    def forward(self, batch: Data) -> torch.Tensor:
        """The classes of a batch of graphs."""
        x = batch.x
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x, batch.edge_index))
        return self.head(global_mean_pool(x, batch.batch))


def make_graphs(count: int) -> list[Data]:
    """Graphs of 20 to 2,000 nodes, most of them small."""
    random = torch.Generator().manual_seed(0)
    graphs = []
    for _ in range(count):
        share = float(torch.rand((), generator=random) ** 3)
        nodes = int(20 + 1_980 * share)
        edges = torch.randint(nodes, (2, 8 * nodes), generator=random)
        label = torch.randint(CLASSES, (1,), generator=random)
        graphs.append(
            Data(x=torch.randn(nodes, CHANNELS, generator=random), edge_index=edges, y=label)
        )
    return graphs


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Network(args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(make_graphs(args.graphs), batch_size=args.batch, shuffle=True)
    for _ in range(args.epochs):
        for graphs in loader:
            batch = graphs.to(device)
            loss = torch.nn.functional.cross_entropy(model(batch), batch.y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print_memory(loss.item())


if __name__ == "__main__":
    main()
