// Nothing to build: the rungs of this day are Python functions.
