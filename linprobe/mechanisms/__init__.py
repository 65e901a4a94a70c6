"""The only code that turns private rows into something that may leave: clip, sum, add noise."""
