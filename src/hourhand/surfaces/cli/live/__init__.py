"""The live view of `hourhand top`: what it asks, what it shows, and the screen."""
