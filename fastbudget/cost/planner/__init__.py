"""The cheapest or fastest way to train: layouts enumerated, priced and ranked, and the files that launch one."""
