"""`sweeper dashboard`: optuna-dashboard with our notes and plots, and our own pages beside it."""
