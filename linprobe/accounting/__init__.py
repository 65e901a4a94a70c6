"""What was released, and what it cost: events, the ledger, the accountants, calibration, per-record losses."""
