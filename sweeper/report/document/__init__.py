"""`sweeper report`: a study in one HTML file that needs no network and can be mailed."""
