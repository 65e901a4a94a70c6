"""Where images come from, one kind of source per file. Nothing is decoded here."""
