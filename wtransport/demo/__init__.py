"""The demo: a policy trained in one process while others sample with the weights they follow."""
