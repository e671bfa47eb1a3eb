"""The engine: graph, compiler, backends, session."""
