"""The services of a node. Each is a loop around one step that can be called by itself."""
