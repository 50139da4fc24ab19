"""A worker's slots: what each claims, supervises and writes down."""
