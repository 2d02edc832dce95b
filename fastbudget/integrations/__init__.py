"""Other people's loops and trackers: each file imports its library only when used.

``huggingface`` and ``lightning`` hold a ``BudgetCallback`` for the trainer of that name; ``tensorboard``, ``mlflow``
and ``wandb`` a sink for the records of `fastbudget.Trainer`.
"""
