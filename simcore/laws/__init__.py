"""The transfer laws and component models: one equation, one pure function."""
