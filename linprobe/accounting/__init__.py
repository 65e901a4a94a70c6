"""Privacy accounting: events, the ledger, the accountants, calibration, per-record losses."""
