"""Training data that can be entered anywhere: samplers, token files, records, loaders."""

from .loader_choice import make_loader
from .memmap_dataset import MemmapDataset
from .padding_collate import PaddingCollate
from .resumable_sampler import ResumableSampler, SampleIndex
from .seeded_dataset import SeededDataset
from .token_dataset import TokenBatches, TokenDataset, TokenLoader

__all__ = [
    "MemmapDataset",
    "PaddingCollate",
    "ResumableSampler",
    "SampleIndex",
    "SeededDataset",
    "TokenBatches",
    "TokenDataset",
    "TokenLoader",
    "make_loader",
]
