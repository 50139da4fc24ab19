"""Views of a study: progress, tables, pages, figures, and the dashboard."""
