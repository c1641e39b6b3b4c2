"""Build, check, time and report: the code that all days share and no day contains."""
