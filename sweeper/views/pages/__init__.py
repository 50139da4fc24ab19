"""Pages of studies and trials: one content model and one template, for a report's file and for the dashboard."""
