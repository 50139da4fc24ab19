"""Views of a run for people: progress, tables, pages, figures, the dashboard."""
