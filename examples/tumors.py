"""A model and loaders of your own: 569 real breast tumors, 30 measurements each (scikit-learn's copy of UCI WDBC)."""

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def build_model() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))


def build_loaders():
    x, y = load_breast_cancer(return_X_y=True)
    y = 1 - y  # 1: malignant
    rest_x, test_x, rest_y, test_y = train_test_split(x, y, test_size=150, stratify=y, random_state=0)
    train_x, valid_x, train_y, valid_y = train_test_split(
        rest_x, rest_y, test_size=100, stratify=rest_y, random_state=0
    )

    def loader(features, labels, **options):
        dataset = TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(labels))
        return DataLoader(dataset, batch_size=32, **options)

    return loader(train_x, train_y, shuffle=True, drop_last=True), loader(valid_x, valid_y), loader(test_x, test_y)
