"""A run on several processes or machines: Ray places and supervises, the loop stays what it is."""
