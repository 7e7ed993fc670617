"""What fits in memory and what one engine step costs."""
