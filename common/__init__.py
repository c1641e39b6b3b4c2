"""Building, checking, timing and reporting: what every day uses and no day writes."""
