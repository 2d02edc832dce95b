"""The process that outlives the trainer: it writes the ledger, enforces the deadline, and sees how the run ended.

It imports the standard library only and nothing of fastbudget outside this package, so that it starts in some 30 ms
and takes some 10 MB: the trainer starts it by this directory's path, not as a module of fastbudget.
"""
