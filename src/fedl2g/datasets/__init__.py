"""Datasets and their partitions: sources, the memory-mapped cache, and the distribution of samples to clients."""

from fedl2g.datasets.dataset import Dataset
from fedl2g.datasets.loading import dataset_names, describe_datasets, load_dataset
from fedl2g.datasets.partition import Partition, make_partition
from fedl2g.datasets.partition_spec import parse_partition

__all__ = [
    "Dataset",
    "Partition",
    "dataset_names",
    "describe_datasets",
    "load_dataset",
    "make_partition",
    "parse_partition",
]
