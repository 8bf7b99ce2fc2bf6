"""The demonstration on one machine: a real engine and small models, made on first use and kept in a cache."""
