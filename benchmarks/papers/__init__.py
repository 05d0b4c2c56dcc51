"""Tables and figures of the papers, reproduced."""
