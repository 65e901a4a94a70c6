"""Reports on runs: the reviewer's page, releases and their pages, tables and plots."""
