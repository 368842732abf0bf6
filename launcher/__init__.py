"""The roof: the `turnkeep` command, and the processes it starts beside the rooms. No room imports it."""
