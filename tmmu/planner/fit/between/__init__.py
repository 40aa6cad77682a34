"""What lies between two points of a curve."""
