"""What people see of a run: progress, tables, pages, figures, the dashboard."""
