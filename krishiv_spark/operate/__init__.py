"""Tools for operators: the commands, and the checkpoint, status and doctor behind them."""
