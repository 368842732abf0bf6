"""The benchmark: a cheap engine, a minimal pass-through proxy and Turnkeep, measured in turn in one run and held against budgets."""
