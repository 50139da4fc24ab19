"""`sweeper dashboard`: optuna-dashboard with sweeper's notes and plots, beside sweeper's own pages."""
